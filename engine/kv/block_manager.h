#pragma once

// The scheduler's and the engine's one door to the KV cache's blocks.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/kv/block_store.h"
#include "engine/kv/block_table.h"
#include "engine/request/sequence.h"
#include "kernels/ops/copy_blocks.h"
#include "kernels/ops/shift_keys.h"

namespace quire::engine {

// The layers that see the last `window` tokens: one KV group.
struct KvWindow {
  int64_t window = 0;      // tokens, the query's own included
  int32_t num_blocks = 0;  // at least WindowBlocksPerSequence
};

struct BlockManagerConfig {
  int32_t num_blocks = 0;
  int32_t block_size = 16;  // tokens
  std::vector<KvWindow> windows;
  // Of one sequence, that may be written beyond those committed: by the step that is built, and
  // by the one in flight where a step is built before the last has completed. With windows only.
  int64_t max_step_tokens = 0;
  int32_t pipeline_depth = 0;
};

// The most blocks of a window that one sequence can come to need at once.
int64_t WindowBlocksPerSequence(int64_t window, const BlockManagerConfig& config);

struct CacheAccess {
  bool read = true;   // may start from blocks that others computed
  bool write = true;  // others may start from what it computed
};

// Tokens [first, first + count), whole blocks, that leave a table.
struct TableShift {
  int64_t first = 0;
  int64_t count = 0;  // 0: none
};

struct BlockStats {
  int64_t num_total = 0;  // free + cached + held
  int64_t num_free = 0;
  int64_t num_cached = 0;
  int64_t num_held = 0;
  int64_t num_quarantined = 0;   // of the held: only a step in flight may still touch them
  int64_t num_hit_blocks = 0;    // shared whole, since the start
  int64_t num_partial_hits = 0;  // taken by copy
  int64_t num_copies = 0;        // partial hits, copies on write and before a shift
  int64_t num_evictions = 0;
  int64_t num_deduplicated = 0;  // computed twice, kept once
  int64_t num_roots = 0;         // of sequences and of what is cached
};

// Of one window's blocks: free + spare + held = total. Spare ones left every window they were in,
// and are kept to continue from until their space is needed.
struct WindowStats {
  int64_t num_total = 0;
  int64_t num_free = 0;
  int64_t num_spare = 0;
  int64_t num_held = 0;
  int64_t num_taken_away = 0;  // of the spare ones, since the start
};

// Whose cache a sequence may share: requests share only under equal parts. Injective: every part
// is written behind its length.
std::string CacheRootKey(std::string_view model, std::string_view adapter, std::string_view tenant,
                         std::string_view part, std::string_view salt);

// The most new tokens that each of `n` samples of one prompt may have, so that all of them fit an
// empty cache of `num_blocks` at once: they share the prompt's whole blocks, each has its own from
// there. Below 1: not even that fits. One sequence alone can then always be brought to its end.
int64_t MaxNewTokens(int64_t num_blocks, int32_t block_size, int64_t prompt_len, int32_t n);

// A sequence's life here:
//
//   BeginStep(1)
//     StartSequence(7, root, tokens)    -> 20 cached: its table holds a shared block (16) and one
//                                          of its own, into which 4 tokens are copied
//     TryGrow(7, 33)                    -> true: its table covers tokens 0 .. 32
//     PrepareWrite(7, 33)                  tokens 20 .. 32 have a place in every window, too
//   EndStep(true, &plan.copies)            the step is in flight
//   CompleteStep(1)
//     Commit(7, tokens, 33)                their K and V exist: others may start from them
//     Fork(7, 8)                           8 shares all of it; who writes the tail first, copies it
//     Release(7)                           shared blocks stay with 8, listed ones stay cached
//
// Two kinds of block are in a table: listed ones, whose tokens are committed and which are never
// written again but behind those tokens, by their one table; and its own, for what comes. A table's
// chain of listed blocks is the tree's own (a block computed twice is kept once, by Commit), so
// nobody holds a block whose parent nobody holds: all cached blocks can be evicted, leaves first,
// and free + cached is what can be had at once.
//
// Steps begin, end and complete in order; at most one is being built and one more in flight. What
// is released while a step in flight may touch it is quarantined (still held) until that step has
// completed.
//
// KV group 0 are the layers that see everything; tables are in its block ids. Each window of
// BlockManagerConfig is one more, in its order, with memory of its own: a block of the tables has
// a part there while it is in some sequence's window, and as long after as nobody needs the space
// (WindowBlocks). What can be continued at a token has all parts that its windows reach back to.
//
// Not thread-safe; lives on the step thread. Nothing is allocated per step after warm-up.
class BlockManager {
 public:
  explicit BlockManager(const BlockManagerConfig& config);

  int32_t block_size() const { return block_size_; }
  int64_t NumBlocksFor(int64_t num_tokens) const {
    return (num_tokens + block_size_ - 1) / block_size_;
  }
  // Whether MaxNewTokens allows `num_new` here.
  bool FitsEmpty(int64_t prompt_len, int64_t num_new, int32_t n = 1) const;
  // Blocks that can be had at once: free and cached.
  int64_t num_available() const { return store_.num_available(); }
  // Whether steps in flight still hold anything that was given back.
  bool AnyQuarantined() const;
  // Grows when blocks, or places in windows, were given back.
  int64_t room() const;

  // --- Within a step: between BeginStep and EndStep.

  void BeginStep(int64_t step);

  struct StartResult {
    int64_t num_cached = 0;  // leading tokens that need not be computed; at most tokens - 1
  };
  // Gives the sequence a table that holds what the cache has of `tokens`: whole blocks shared, the
  // best partly matching one copied, if a block can be had for the copy and `allow_copy`. It must
  // then grow and run in this step, or be released in it.
  StartResult StartSequence(SequenceId id, std::string_view root_key,
                            std::span<const int32_t> tokens, CacheAccess access,
                            bool allow_copy = true);

  // Makes the table cover tokens [0, num_tokens), all writable from the first uncommitted one on:
  // a shared tail is copied first. With a shift, which a full table may have once a step where no
  // layer has a window, first takes its tokens out: those behind move up, their keys are turned to
  // their new places, in blocks of their own, and `num_tokens` counts by these. From then on the
  // sequence commits nothing more. False, and nothing changed, when the blocks, or places for them
  // in the windows, cannot be had.
  bool TryGrow(SequenceId id, int64_t num_tokens, TableShift shift = {});
  // Whether it could, without a shift, and leave `spare` blocks.
  bool CanGrow(SequenceId id, int64_t num_tokens, int64_t spare = 0) const;
  // Whether it could when the steps in flight have completed.
  bool CouldGrowLater(SequenceId id, int64_t num_tokens, TableShift shift = {}) const;
  // Whether it has: TryGrow, without a shift, would change nothing.
  bool Covers(SequenceId id, int64_t num_tokens) const;
  // Blocks that TryGrow would take now, beyond those that it frees.
  int64_t NumBlocksToGrow(SequenceId id, int64_t num_tokens, TableShift shift = {}) const;

  // The step will write tokens up to num_tokens, which TryGrow has covered: at most max_step_tokens
  // a step.
  void PrepareWrite(SequenceId id, int64_t num_tokens);

  // Ends the building of a step. `submitted`: it goes into flight and runs `copies`, then `shifts`
  // (both appended) first. Otherwise no sequence may have started or been given one in it.
  void EndStep(bool submitted, std::vector<kernels::BlockCopy>* copies,
               std::vector<kernels::KeyShift>* shifts);

  // --- When a step has run.

  // Frees what waited for it.
  void CompleteStep(int64_t step);

  // `tokens`, at least the first `num_computed` of the sequence, whose K and V completed steps have
  // written: from now on others may start from them, and what has left its windows goes.
  // num_computed never falls but by a shift, behind which it counts by places in the table.
  void Commit(SequenceId id, std::span<const int32_t> tokens, int64_t num_computed);

  // A child that shares everything the parent committed. No step in flight may be writing for the
  // parent. False, and there is no child, when it would have no place in the windows.
  bool TryFork(SequenceId parent, SequenceId child);

  // --- At any time.

  // How many leading tokens StartSequence would find, if the windows have their parts of them.
  int64_t NumCached(std::string_view root_key, std::span<const int32_t> tokens);
  // Every hold of the sequence; what it committed stays cached. Its copies in the step being built
  // are taken back.
  void Release(SequenceId id);

  // Also takes what it holds out of the cache, from its last block on up to one that another holds
  // or continues.
  void ReleaseUnlisted(SequenceId id);

  bool Holds(SequenceId id) const { return sequences_.contains(id); }
  int32_t num_kv_groups() const { return 1 + static_cast<int32_t>(store_.num_windows()); }
  // Of group 0; valid until the next call that changes the sequence.
  std::span<const int32_t> Table(SequenceId id) const;
  // Where the table's blocks have parts in a group: all of them in group 0.
  BlockTable::Run RunIn(int32_t kv_group, SequenceId id) const;
  // The part that a block of group 0 has in a group; -1: none.
  int32_t BlockIn(int32_t kv_group, int32_t block) const {
    return kv_group == 0 ? block : store_.window(kv_group - 1).Find(block);
  }
  // What its release would free or leave to the cache: blocks that nobody else holds, and the
  // committed tokens in them, the work that could be lost.
  struct Exclusive {
    int64_t num_blocks = 0;
    int64_t num_tokens = 0;
  };
  Exclusive ExclusiveOf(SequenceId id) const;

  BlockStats stats() const;
  WindowStats window_stats(int32_t kv_group) const;  // 1 .. num_kv_groups() - 1
  // Counts everything again from the tables, the tree and the holds; aborts on a difference:
  // free + cached + held == total, each reference count equals the number of tables and handles
  // that hold the block, and every cached block can be evicted; the same for windows, where every
  // sequence has what it reaches back to.
  void CheckInvariants() const;

 private:
  struct Held {
    BlockTable table;
    RootId root = -1;
    CacheAccess access;
    int64_t num_committed = 0;
    int64_t num_reserved = 0;      // tokens that it has places for in the windows
    int64_t start_step = -1;       // the step it started in
    int64_t copy_step = -1;        // the step that makes its last copies or shifts
    std::vector<int32_t> sources;  // that it holds until that step has completed
  };
  Held& Find(SequenceId id);
  const Held& Find(SequenceId id) const;
  Held& Insert(SequenceId id);
  // What this step does for a sequence before it writes; all of it is taken back when it goes.
  void BeginCopies(Held& held);
  void AddCopy(Held& held, int32_t source, int32_t destination);
  void Shift(Held& held, TableShift shift);
  void TakeBackCopies(Held& held);
  // The first block that a query at `position` reaches back to in window w.
  int64_t WindowBegin(size_t w, int64_t position) const;
  // Blocks to reserve in window w for a sequence of so many tokens.
  int64_t WindowDemand(size_t w, int64_t num_tokens) const;
  bool CanReserve(const Held& held, int64_t num_tokens) const;
  bool TryReserve(Held& held, int64_t num_tokens);
  // Shortens a match to the last whole block behind which the windows have all that they reach back
  // to; its part of one more stays only if that is the last of all, and they have that part too.
  void TrimToWindows(PrefixCache::Match& match);
  void LeaveWindows(Held& held);
  void CheckWindows() const;
  // Lists tokens [num_committed, end) of one block.
  void CommitInBlock(Held& held, std::span<const int32_t> tokens, int64_t end);

  const BlockManagerConfig config_;
  const int32_t block_size_;
  BlockStore store_;
  std::unordered_map<SequenceId, Held> sequences_;
  std::vector<std::unordered_map<SequenceId, Held>::node_type> spare_;  // with their capacity
  // Scratch of StartSequence.
  std::vector<int32_t> matched_;
  std::vector<int64_t> begins_;
  std::vector<bool> continuable_;
  // Of the step being built.
  std::vector<kernels::BlockCopy> copies_;
  std::vector<kernels::KeyShift> shifts_;
  int64_t num_hit_blocks_ = 0;
  int64_t num_partial_hits_ = 0;
  int64_t num_copies_ = 0;
  int64_t num_deduplicated_ = 0;
};

}  // namespace quire::engine
