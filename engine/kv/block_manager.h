#pragma once

// The only interface through which the scheduler and the engine reach the KV cache's blocks.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/math.h"
#include "engine/kv/block_store.h"
#include "engine/kv/block_table.h"
#include "engine/request/sequence.h"
#include "kernels/ops/copy_blocks.h"
#include "kernels/ops/shift_keys.h"

namespace quire::engine {

// One KV group: the layers that attend to the last `window` tokens.
struct KvWindow {
  int64_t window = 0;      // tokens, the query's own included
  int32_t num_blocks = 0;  // at least WindowBlocksPerSequence
};

struct BlockManagerConfig {
  int32_t num_blocks = 0;
  int32_t block_size = 16;  // tokens
  std::vector<KvWindow> windows;
  // The most tokens of one sequence that a step writes after the committed ones. With a
  // pipeline_depth of 1 a step is built while the one before is in flight. Used with windows only.
  int64_t max_step_tokens = 0;
  int32_t pipeline_depth = 0;
};

// The most blocks of a window that one sequence can need at once.
int64_t WindowBlocksPerSequence(int64_t window, const BlockManagerConfig& config);

struct CacheAccess {
  bool read = true;   // may start from blocks that others computed
  bool write = true;  // others may start from what it computed
};

// The tokens [first, first + count), whole blocks, that are removed from a table.
struct TableShift {
  int64_t first = 0;
  int64_t count = 0;  // 0: none
};

struct BlockStats {
  int64_t num_total = 0;  // free + cached + held
  int64_t num_free = 0;
  int64_t num_cached = 0;
  int64_t num_held = 0;
  int64_t num_quarantined = 0;   // held blocks that only a step in flight may still touch
  int64_t num_hit_blocks = 0;    // shared whole, since the start
  int64_t num_partial_hits = 0;  // taken by copy
  int64_t num_copies = 0;        // partial hits, copies on write and before a shift
  int64_t num_evictions = 0;
  int64_t num_deduplicated = 0;  // computed twice, kept once
  int64_t num_roots = 0;         // in use by sequences and cached blocks
};

// One window's blocks: free + spare + held = total. A spare block has left every window it was in;
// it is kept, so that a sequence can continue from it, until its space is needed.
struct WindowStats {
  int64_t num_total = 0;
  int64_t num_free = 0;
  int64_t num_spare = 0;
  int64_t num_held = 0;
  int64_t num_taken_away = 0;  // spare blocks whose space was reused, since the start
};

// The key of the cache that a sequence may share: requests share blocks only if all parts are
// equal. Injective: each part is written after its length.
std::string CacheRootKey(std::string_view model, std::string_view adapter, std::string_view tenant,
                         std::string_view part, std::string_view salt);

// The most new tokens that each of `n` samples of one prompt may have, so that all of them fit an
// empty cache of `num_blocks` at once. They share the prompt's whole blocks; every later block
// belongs to one sample. Below 1 when not even one new token fits. Within this limit a sequence
// that runs alone can always finish.
int64_t MaxNewTokens(int64_t num_blocks, int32_t block_size, int64_t prompt_len, int32_t n);

// A sequence's life here:
//
//   BeginStep(1)
//     StartSequence(7, root, tokens)    -> 20 cached: its table holds a shared block (16) and one
//                                          of its own, into which 4 tokens are copied
//     TryGrow(7, 33)                    -> true: its table covers tokens 0 .. 32
//     PrepareWrite(7, 33)                  tokens 20 .. 32 have a place in every window, too
//   EndStep(true, &copies, &shifts)        the step is in flight
//   CompleteStep(1)
//     Commit(7, tokens, 33)                their K and V exist: others may start from them
//     TryFork(7, 8)                        8 shares all; the first to write the tail copies it
//     Release(7)                           shared blocks stay with 8, listed ones stay cached
//
// A table holds two kinds of block. Listed blocks are nodes of the prefix tree: their committed
// tokens are never overwritten, and only the one table that owns a tail may append after them. The
// others are the sequence's own, for tokens not committed yet. The listed blocks of a table are a
// path in the tree (Commit keeps a block that was computed twice only once), so the parent of a
// held block is held. Every cached block can therefore be evicted, leaves first, and free + cached
// blocks are available at once.
//
// Steps begin, end and complete in order; at most one is being built and one more in flight. A
// block released while a step in flight may touch it is quarantined (still held) until that step
// has completed.
//
// KV group 0 holds the layers without a window; tables contain its block ids. Each window of
// BlockManagerConfig is one more group, in the same order, with memory of its own. A block of a
// table has a part there while it is in some sequence's window, and afterwards until the space is
// needed (WindowBlocks). A sequence can continue at a token only if every block that the windows
// reach back to from there still has its part.
//
// Not thread-safe; lives on the step thread. Nothing is allocated per step after warm-up.
class BlockManager {
 public:
  explicit BlockManager(const BlockManagerConfig& config);

  int32_t block_size() const { return block_size_; }
  int64_t NumBlocksFor(int64_t num_tokens) const { return base::CeilDiv(num_tokens, block_size_); }
  // True if MaxNewTokens allows `num_new` in this cache.
  bool FitsEmpty(int64_t prompt_len, int64_t num_new, int32_t n = 1) const;
  // Blocks available at once: free and cached ones.
  int64_t num_available() const { return store_.num_available(); }
  // True while steps in flight still hold blocks, or places in windows, that were released.
  bool AnyQuarantined() const;
  // Free room in blocks of all groups; it grows when blocks, or places in windows, are released.
  int64_t room() const;

  // --- Within a step: between BeginStep and EndStep.

  void BeginStep(int64_t step);

  struct StartResult {
    int64_t num_cached = 0;  // leading tokens that need not be computed; at most tokens - 1
  };
  // Gives the sequence a table with the cached prefix of `tokens`. Whole blocks are shared; the
  // block that matches best in part is copied, if `allow_copy` and a block for the copy is
  // available. The sequence must then grow and run in this step, or be released in it.
  StartResult StartSequence(SequenceId id, std::string_view root_key,
                            std::span<const int32_t> tokens, CacheAccess access,
                            bool allow_copy = true);

  // Makes the table cover tokens [0, num_tokens), all writable from the first uncommitted one on: a
  // shared tail is copied first. Returns false, and changes nothing, when blocks or places in the
  // windows are lacking.
  //
  // A full table may be shifted once a step, if no layer has a window. A shift first removes its
  // tokens: those after them move up into blocks of the sequence's own, their keys are rotated to
  // their new positions, and `num_tokens` counts the table as shifted. From then on the sequence
  // commits nothing more.
  bool TryGrow(SequenceId id, int64_t num_tokens, TableShift shift = {});
  // True if TryGrow, without a shift, would succeed and leave `spare` blocks available.
  bool CanGrow(SequenceId id, int64_t num_tokens, int64_t spare = 0) const;
  // True if TryGrow could succeed once the steps in flight have completed.
  bool CouldGrowLater(SequenceId id, int64_t num_tokens, TableShift shift = {}) const;
  // True if TryGrow, without a shift, would have nothing to do.
  bool Covers(SequenceId id, int64_t num_tokens) const;
  // Blocks that TryGrow would take now, less those that it would free.
  int64_t NumBlocksToGrow(SequenceId id, int64_t num_tokens, TableShift shift = {}) const;

  // Attaches parts in every window up to num_tokens, which TryGrow has covered and the step will
  // write; at most max_step_tokens of them are new in a step.
  void PrepareWrite(SequenceId id, int64_t num_tokens);

  // Ends the building of a step. If `submitted`, the step is in flight and runs `copies`, then
  // `shifts` (both appended) first. If not, no sequence may have started in it or have a copy or a
  // shift in it.
  void EndStep(bool submitted, std::vector<kernels::BlockCopy>* copies,
               std::vector<kernels::KeyShift>* shifts);

  // --- When a step has run.

  // Releases the blocks, and places in windows, that were quarantined until this step.
  void CompleteStep(int64_t step);

  // Makes the first `num_computed` of `tokens` available to others: completed steps have written
  // their K and V. `tokens` may hold more. Blocks that have left the sequence's windows are
  // released there. num_computed falls only by a shift; after one it counts places in the table.
  void Commit(SequenceId id, std::span<const int32_t> tokens, int64_t num_computed);

  // Creates a child that shares everything the parent committed. No step in flight may be writing
  // for the parent. Returns false, and creates no child, when the windows have no place for it.
  bool TryFork(SequenceId parent, SequenceId child);

  // --- At any time.

  // The number of leading tokens that StartSequence would find if no window lacked a part of them.
  int64_t NumCached(std::string_view root_key, std::span<const int32_t> tokens);
  // Releases everything that the sequence holds. Committed blocks stay cached. Its copies in the
  // step being built are taken back.
  void Release(SequenceId id);

  // Releases the sequence, and removes its blocks from the cache: from the last one backwards, up
  // to a block that another sequence holds or continues.
  void ReleaseUnlisted(SequenceId id);

  bool Holds(SequenceId id) const { return sequences_.contains(id); }
  int32_t num_kv_groups() const { return 1 + static_cast<int32_t>(store_.num_windows()); }
  // The block ids of group 0; valid until the next call that changes the sequence.
  std::span<const int32_t> Table(SequenceId id) const;
  // The run of the table's blocks that have parts in a group; all of them in group 0.
  BlockTable::Run RunIn(int32_t kv_group, SequenceId id) const;
  // The part that a block of group 0 has in a group; -1: none.
  int32_t BlockIn(int32_t kv_group, int32_t block) const {
    return kv_group == 0 ? block : store_.window(kv_group - 1).Find(block);
  }
  // The blocks that nobody else holds, which a release would free or leave to the cache, and the
  // committed tokens in them: the work that could be lost.
  struct Exclusive {
    int64_t num_blocks = 0;
    int64_t num_tokens = 0;
  };
  Exclusive ExclusiveOf(SequenceId id) const;

  BlockStats stats() const;
  WindowStats window_stats(int32_t kv_group) const;  // 1 .. num_kv_groups() - 1
  // Recounts everything from the tables, the tree and the holds; aborts on a difference:
  // free + cached + held == total, each reference count equals the number of tables and handles
  // that hold the block, and every cached block can be evicted; the same for windows, where every
  // sequence has the parts that it reaches back to.
  void CheckInvariants() const;

 private:
  struct Held {
    BlockTable table;
    RootId root = -1;
    CacheAccess access;
    int64_t num_committed = 0;
    int64_t num_reserved = 0;      // tokens for which it has places in the windows
    int64_t start_step = -1;       // the step it started in
    int64_t copy_step = -1;        // the step that makes its last copies or shifts
    std::vector<int32_t> sources;  // of those copies, held until that step has completed
  };
  Held& Find(SequenceId id);
  const Held& Find(SequenceId id) const;
  Held& Insert(SequenceId id);
  // The copies and shifts of a sequence, which the step runs before it writes. Releasing the
  // sequence within the step takes all of them back.
  void BeginCopies(Held& held);
  void AddCopy(Held& held, int32_t source, int32_t destination);
  void Shift(Held& held, TableShift shift);
  void TakeBackCopies(Held& held);
  // The first block that a query at `position` reaches back to in window w.
  int64_t WindowBegin(size_t w, int64_t position) const;
  // Blocks to reserve in window w for a sequence of `num_tokens` tokens.
  int64_t WindowDemand(size_t w, int64_t num_tokens) const;
  bool CanReserve(const Held& held, int64_t num_tokens) const;
  bool TryReserve(Held& held, int64_t num_tokens);
  // Shortens a match to the last whole block after which every window has the parts that it reaches
  // back to. The block matched in part stays only if no whole block is cut off and every window has
  // its part.
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
  // The copies and shifts of the step being built.
  std::vector<kernels::BlockCopy> copies_;
  std::vector<kernels::KeyShift> shifts_;
  int64_t num_hit_blocks_ = 0;
  int64_t num_partial_hits_ = 0;
  int64_t num_copies_ = 0;
  int64_t num_deduplicated_ = 0;
};

}  // namespace quire::engine
