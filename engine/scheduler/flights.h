#pragma once

// Lets waiting sequences wait for tokens that a running sequence computes, so that no prefix is
// computed twice at the same time. Included only by the scheduler's own .cc files.

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/kv/block_manager.h"
#include "engine/scheduler/scheduler_state.h"
#include "engine/scheduler/waiting.h"

namespace quire::engine {

// A running sequence leads while it computes tokens that it shares through the cache. A waiting
// sequence follows a leader if the two have the same root and the same first tokens, and if the
// leader has yet to compute at least `least_blocks` blocks of these that the cache lacks. The
// follower is out of turn, so others pass it. It returns to its turn when the leader has computed
// what they share. It also returns, to lead itself or to follow another, when the leader ends, is
// preempted, or waits for its reader.
//
// A sequence on a named prefix that is still being computed follows the request that computes it,
// its load, whatever its own root is. The load leads while it runs. While it waits, it leads only
// sequences of its own tenant, and none of a larger priority: nobody waits longer because another
// tenant is held up. Any other sequence on the prefix gives its turn to the load, if the load may
// start, and then follows it.
//
// Followers hold nothing, and a leader runs or waits in its own turn, so there is no circle. New
// sequences start only with what running prompts leave of a step. So a leader is planned to the end
// of what they share, and a follower waits for one step, or two in a pipeline; only for a load that
// waits it may be more. A sequence follows at most kMostFollows times.
//
// A waiting sequence is compared with each leader once, first in the blocks that the leader
// computes next.
class Scheduler::Flights {
 public:
  static constexpr int32_t kMostFollows = 64;

  // `least_blocks` is at least 1; 0: nobody follows.
  Flights(Waiting& waiting, BlockManager& blocks, int32_t least_blocks)
      : waiting_(waiting),
        blocks_(blocks),
        least_tokens_(int64_t{least_blocks} * blocks.block_size()) {}

  // The sequence was added to the scheduler.
  void Add(State& state);
  // The sequence has started to run. It may lead from now on.
  void Start(State& state);
  // The leader has committed more tokens. Returns true if followers returned to their turns.
  bool NoteComputed(State& leader);
  // The sequence no longer computes what others wait for. Its followers return to their turns.
  void Stop(State& leader);
  // The sequence has ended.
  void End(State& state);
  // Takes a waiting sequence out of its turn if there is something to follow. Returns true if so.
  bool TryFollow(State& state);
  // Returns the load that waits in turn and that the sequence would follow if the load ran; null if
  // there is none.
  State* WaitingLoad(const State& state) const;

  // By FollowEnd.
  const std::array<int64_t, 3>& ends() const { return ends_; }
  void CheckInvariants() const;

 private:
  static constexpr int64_t kToItsEnd = INT64_MAX;  // as `overlap`: until the leader ends

  void Follow(State& state, State& leader, int64_t overlap);
  void Return(State& follower, FollowEnd end);
  // Returns the followers of the leader that wait for no more than `num_computed` tokens to their
  // turns. Returns true if there are any.
  bool ReturnUpTo(State& leader, int64_t num_computed, FollowEnd end);
  void StopLeading(State& leader);
  // False for a sequence that takes nothing from the cache, or has followed too often.
  bool MayFollow(const State& state) const;
  // Returns the load of the sequence's named prefix; null if the prefix is there, or has ended.
  State* LoadOf(const State& state) const;
  bool TryFollowLoad(State& state);
  int64_t Overlap(const State& leader, std::span<const int32_t> tokens) const;

  Waiting& waiting_;
  BlockManager& blocks_;
  const int64_t least_tokens_;
  std::vector<State*> leaders_;
  std::vector<State*> followers_;
  std::unordered_map<PinId, State*> loads_;  // the sequences that compute named prefixes
  int64_t num_leaders_ = 0;                  // since the start
  std::array<int64_t, 3> ends_{};
};

}  // namespace quire::engine
