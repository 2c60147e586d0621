#pragma once

// Runs BlockManager with all its operations, at random, against a cache of hashes (see Slot). A
// step copies, reads and writes the slots that its tables name, so a wrong table, copy or hit, a
// block reused too early and a hit under a foreign root are seen. Naive models say which tokens are
// pinned, who holds how many blocks, which tokens each beam has, and what a disk has.

#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/kv/block_manager.h"
#include "tests/engine/kv/model_disk.h"
#include "tests/engine/kv/slot_model.h"

namespace quire::engine {

class KvWorld {
 public:
  struct Totals {
    int64_t operations = 0;
    std::map<std::string, int64_t> counts;
  };

  // Chooses sizes by the seed. `totals` is borrowed and grows.
  KvWorld(uint32_t seed, Totals& totals);

  // Runs so many steps, and then ends everything. Fails the test, and ends early, at a difference.
  void Run(int64_t num_steps);

 private:
  using Tokens = std::vector<int32_t>;
  using BeamsId = int64_t;

  static constexpr int64_t kChunk = 6;     // the most tokens of a sequence in a step
  static constexpr size_t kMostForks = 8;  // sequences, with forks and beams
  static constexpr BeamsId kNoBeams = 0;

  struct Live {
    Tokens tokens;
    std::string tenant;
    PinId on = kNoPin;
    CacheAccess access;
    std::string label;  // of the root under which it computes
    std::string owner;  // of the pin's blocks when it started
    int64_t num_planned = 0;
    int64_t num_committed = 0;
    int64_t pinned_tokens = 0;  // of its pin when it started
    int64_t started_in = 0;     // the step
    // What the slots of the planned tokens hold. A shift changes the hashes of the tokens that it
    // moves, and `tokens` are then those that are left.
    std::vector<uint64_t> hashes;
    int64_t num_shifted = 0;  // tokens
    // TryGrow has covered tokens up to room_end, when so many blocks had been sealed.
    int64_t room_end = 0;
    int64_t room_seals = -1;
    BeamsId beams = kNoBeams;  // those of which it is one
  };
  // Sequences that run together. They are in live_, too.
  struct Beams {
    std::vector<SequenceId> ids;
    int64_t num_joint = 0;  // tokens that were committed before they became beams
  };
  struct PinModel {
    Tokens tokens;
    std::string owner;
    int64_t ends_at = 0;  // the step of its expiry
  };
  struct Load {
    std::string root;
    std::string tenant;
    Tokens tokens;
    int64_t num_cached = 0;                      // blocks that the cache had
    std::vector<std::vector<uint64_t>> on_disk;  // the hashes of the leading blocks
    int64_t num_written = 0;                     // blocks that are right, with those of the cache
  };
  // What a step does for one sequence. The tables are those at the time of planning.
  struct Work {
    SequenceId id = 0;
    std::vector<uint64_t> hashes;  // of the tokens up to `end`
    int64_t num_shifted = 0;       // before this step was planned
    std::string label;
    std::string owner;  // of the pin; its slots may come from there
    int64_t pinned_tokens = 0;
    int64_t begin = 0;
    int64_t end = 0;
    std::vector<std::vector<int32_t>> tables;  // by KV group; -1: no block
  };
  struct InFlight {
    int64_t step = 0;
    bool has_run = false;
    std::vector<kernels::BlockCopy> copies;
    std::vector<kernels::KeyShift> shifts;
    // The places of the copies in each window, as {source, destination}.
    std::vector<std::vector<kernels::BlockCopy>> window_copies;
    std::vector<Work> works;
  };

  int Pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  template <typename Map>
  auto& PickOf(Map& map) {
    return *std::next(map.begin(), Pick(0, static_cast<int>(map.size()) - 1));
  }
  TenantCharges::Payer PayerOf(const std::string& tenant);
  std::string RootOf(const std::string& tenant, PinId on) const {
    return CacheRootKey("m", "", tenant, "", "", on);
  }
  static int64_t Size(const Tokens& tokens) { return static_cast<int64_t>(tokens.size()); }

  // Counts an operation, after which everything is checked (kv_world_checks.cc).
  void Count(const std::string& what);
  void CheckRoom();
  void CheckCharges();
  void CheckPinned();
  void CheckBeams();

  void Step();
  void Meanwhile();  // at any time
  void Between();    // at any time outside of the building of a step
  void EndAll();

  // The life of a sequence (kv_world_sequences.cc).
  void Start();
  void Plan(SequenceId id);
  void PlanNext(SequenceId id);
  bool TryShift(SequenceId id, Live& live, int64_t num_blocks);
  void NoteRoom(Live& live, int64_t end);
  bool IsPlanned(SequenceId id) const;
  bool IsAwaited(SequenceId id) const;
  void Commit(const std::vector<Work>& works);
  void CommitTogether(const std::vector<Work>& works);
  void Continue(SequenceId id);
  void Release(SequenceId id, const std::string& why);
  void Preempt(SequenceId id);

  // What a step in flight does.
  void EndStep();
  Slot& SlotOf(size_t group, const Work& work, int64_t i);
  void Copy(size_t group, const kernels::BlockCopy& copy);
  void Execute(InFlight& step);
  void Execute(const Work& work);
  void CompleteOldest();

  // kv_world_pins.cc
  void TryPin();
  void TryPinOf(const Live& live);
  void ForkPin();
  void Unpin(PinId pin);

  // kv_world_beams.cc
  void BecomeBeams(SequenceId id);
  void PlanBeams(const Beams& beams);
  void Reorder(const Beams& beams);

  // kv_world_disk.cc
  void Spill();
  void BeginLoad();
  void AdvanceLoad(SequenceId id);
  void WriteNext(SequenceId id);
  void EndLoad(SequenceId id);

  std::mt19937 random_;
  Totals& totals_;
  int32_t block_size_ = 0;
  int32_t depth_ = 0;
  int32_t num_blocks_ = 0;
  std::vector<KvWindow> windows_;
  std::vector<std::vector<Slot>> memory_;  // by KV group
  std::optional<ModelDisk> disk_;          // only without windows
  std::optional<BlockManager> blocks_;
  std::map<SequenceId, Live> live_;
  std::map<BeamsId, Beams> beams_;
  std::map<PinId, PinModel> pins_;
  std::map<SequenceId, Load> loads_;
  std::map<std::string, TenantCharges::Payer> payers_;
  std::deque<Live> preempted_;
  std::deque<Tokens> seen_;
  std::vector<Work> works_;
  std::deque<InFlight> in_flight_;
  bool building_ = false;
  int64_t step_ = 0;
  SequenceId next_id_ = 1;
  SequenceId next_load_ = -1;  // and downwards
  BeamsId next_beams_ = 1;
  PinId next_pin_ = 1;
};

}  // namespace quire::engine
