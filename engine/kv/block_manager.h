#pragma once

// The only interface through which the scheduler and the engine reach the KV cache's blocks.

#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"

#include "base/math.h"
#include "engine/kv/block_store.h"
#include "engine/kv/block_table.h"
#include "engine/kv/cache_walk.h"
#include "engine/request/sequence.h"
#include "kernels/ops/attention_pattern.h"
#include "kernels/ops/copy_blocks.h"
#include "kernels/ops/shift_keys.h"

namespace quire::engine {

// One KV group of layers whose queries do not see all keys. The window of a query is the run of
// keys that it sees.
struct KvWindow {
  kernels::AttentionPattern pattern;
  int32_t num_blocks = 0;  // at least WindowBlocksPerSequence
};

struct BlockManagerConfig {
  int32_t num_blocks = 0;
  int32_t block_size = 16;  // tokens
  std::vector<KvWindow> windows;
  // The most uncommitted tokens of one sequence that one step writes. Used only with windows.
  int64_t max_step_tokens = 0;
  // 1: a step is built while the previous step is in flight. Used only with windows.
  int32_t pipeline_depth = 0;
  EvictionPolicy eviction = EvictionPolicy::kReuse;
  // Is told of each whole block that sequences on no pin commit, and must outlive the manager.
  // Null: nobody. Only without windows.
  BlockSpill* spill = nullptr;
};

// Returns the most blocks of a window that one sequence can need at once.
int64_t WindowBlocksPerSequence(const kernels::AttentionPattern& pattern,
                                const BlockManagerConfig& config);

// Returns the blocks that a pin of `num_tokens` tokens holds: those of group 0, and then the parts
// in each window.
std::vector<int64_t> PinnedBlocks(std::span<const kernels::AttentionPattern> windows,
                                  int32_t block_size, int64_t num_tokens);

struct CacheAccess {
  bool read = true;   // the sequence may start from blocks that others computed
  bool write = true;  // others may start from blocks that the sequence computed
  TenantCharges::Payer payer = TenantCharges::kNamelessPayer;  // of what the sequence holds
  int32_t num_together = 1;  // the sequences for which it reserves places in windows: ForkTogether
};

// A range of tokens to remove from a table: [first, first + count). The tokens fill whole blocks.
struct TableShift {
  int64_t first = 0;
  int64_t count = 0;  // 0: none
};

struct BlockStats {
  int64_t num_total = 0;  // free + cached + held
  int64_t num_free = 0;
  int64_t num_cached = 0;
  int64_t num_held = 0;
  int64_t num_quarantined = 0;   // held only until a step has completed
  int64_t num_pinned = 0;        // held by pins, and perhaps by sequences as well
  int64_t num_hit_blocks = 0;    // blocks matched whole and shared, since the start
  int64_t num_partial_hits = 0;  // blocks matched in part and copied
  int64_t num_copies = 0;        // copies for partial hits, writes to shared blocks and shifts
  int64_t num_evictions = 0;
  int64_t num_deduplicated = 0;  // blocks computed twice and kept once
  int64_t num_roots = 0;         // roots that sequences or cached blocks use
};

// Counts the blocks of one window: free + spare + held = total. A spare block is no longer in the
// window of any sequence. It is kept until its space is needed, so that a sequence can continue
// from it.
struct WindowStats {
  int64_t num_total = 0;
  int64_t num_free = 0;
  int64_t num_spare = 0;
  int64_t num_held = 0;
  int64_t num_taken_away = 0;  // spare blocks whose space was reused, since the start
};

// Returns the most new tokens that each of `n` samples of one prompt may have if all samples are to
// fit an empty cache of `num_blocks` at once. The samples share the prompt's whole blocks. Every
// later block belongs to one sample. The result is below 1 when not even one new token fits. Within
// this limit a sequence that runs alone can always finish.
int64_t MaxNewTokens(int64_t num_blocks, int32_t block_size, int64_t prompt_len, int32_t n);

// Returns the number of blocks that `n` samples of one prompt, each with `num_new` new tokens, hold
// at the most: the least num_blocks for which MaxNewTokens allows num_new.
int64_t MostBlocks(int32_t block_size, int64_t prompt_len, int64_t num_new, int32_t n);

// An example of the life of a sequence:
//
//   BeginStep(1)
//     StartSequence(7, root, tokens)    -> 20 cached: the table has a shared block (16 tokens)
//                                          and a block of its own with 4 copied tokens
//     TryGrow(7, 33)                    -> true: the table covers tokens 0 .. 32
//     PrepareWrite(7, 33)                  tokens 20 .. 32 have a place in every window, too
//   EndStep(true, &copies, &shifts)        the step is in flight
//   CompleteStep(1)
//     Commit(7, tokens, 33)                K and V of the tokens exist: others may use them
//     TryFork(7, 8)                        8 shares all blocks; the first writer copies the tail
//     Release(7)                           shared blocks stay with 8, listed ones stay cached
//
// A table holds two kinds of block. Listed blocks are nodes of the prefix tree. Their committed
// tokens are never overwritten, and only the table that owns a tail block may append to it.
// Unlisted blocks hold tokens that are not committed yet, or that the sequence does not share
// through the cache. The listed blocks of a table form a path in the tree, because Commit keeps
// only one of two blocks with the same content. So the parent of a held block is held. Therefore
// every cached block can be evicted, leaves first, and all free and cached blocks are available.
//
// A pin holds the blocks of one token sequence, whole or not at all, until it ends. Sequences may
// run on it, as requests do on a named prefix. They share its whole blocks, whatever their own root
// is, and copy its last block if that is not full. What they compute themselves is listed under
// their own root, whose first blocks follow the whole blocks of the pin. So sequences with
// different roots share the pinned tokens and nothing after them. If the pin has ended when a
// sequence starts, the sequence computes everything, under a root of its own.
//
// Steps begin, end and complete in order. At most one step is being built and one more is in
// flight. A block released while a step in flight may touch it is quarantined (still held) until
// that step has completed.
//
// KV group 0 holds the layers without a window. Tables contain block ids of group 0. Each window of
// BlockManagerConfig is one more group, in the same order, with memory of its own. While a block of
// a table is in the window of some sequence, the block also has memory in the window's group. This
// memory is called the block's part. When the block has left the windows of all sequences, its part
// stays until the space is needed (see WindowBlocks). A sequence can continue at a token only if
// every block to which a window reaches back from that token still has its part.
//
// Not thread-safe; lives on the step thread. Nothing is allocated per step after warm-up.
class BlockManager {
 public:
  explicit BlockManager(const BlockManagerConfig& config);

  int32_t block_size() const { return block_size_; }
  int64_t NumBlocksFor(int64_t num_tokens) const { return base::CeilDiv(num_tokens, block_size_); }
  // True if MaxNewTokens allows `num_new` in this cache.
  bool FitsEmpty(int64_t prompt_len, int64_t num_new, int32_t n = 1) const;
  // The number of blocks that can be taken: free and cached ones.
  int64_t num_available() const { return store_.num_available(); }
  // True while some blocks, or places in windows, were released but are not available yet, because
  // a step in flight may still use them.
  bool AnyQuarantined() const;
  // Returns the number of available blocks plus the unreserved blocks of all windows. The number
  // grows when blocks, or places in windows, are released.
  int64_t room() const;

  // --- Within a step: between BeginStep and EndStep.

  // `now` is a time of a clock that does not go back. The prefix cache learns from it how soon
  // blocks are used again.
  void BeginStep(int64_t step, absl::Time now = absl::UnixEpoch());

  struct StartResult {
    int64_t num_cached = 0;  // leading tokens that need not be computed; at most tokens.size() - 1
    int64_t num_pinned = 0;  // those of num_cached that the pin of `on` holds
  };
  // Gives the sequence a table with the cached prefix of `tokens`. Whole blocks are shared; the
  // block with the longest partial match is copied if `allow_copy` and a block for the copy is
  // available. The sequence must then grow and run in this step, or be released in it. `on`: the
  // pin on which the sequence runs. Its tokens must be the first of `tokens`, or begin with all of
  // them; root_key must be a key with this pin.
  StartResult StartSequence(SequenceId id, std::string_view root_key,
                            std::span<const int32_t> tokens, CacheAccess access,
                            bool allow_copy = true, PinId on = kNoPin);

  // Makes the table cover tokens [0, num_tokens) and makes the uncommitted ones writable. A shared
  // tail block is replaced by a copy. Returns false, and changes nothing, when too few blocks or
  // places in the windows are available.
  //
  // A full table may be shifted once per step, if no layer has a window. A shift first removes the
  // tokens of `shift` from the table. Later tokens move up into blocks of the sequence's own, and
  // their keys are rotated to the new positions. `num_tokens` then counts tokens of the shifted
  // table. After a shift the sequence adds nothing more to the cache.
  bool TryGrow(SequenceId id, int64_t num_tokens, TableShift shift = {});
  // True if TryGrow, without a shift, would succeed and leave `spare` blocks available.
  bool CanGrow(SequenceId id, int64_t num_tokens, int64_t spare = 0) const;
  // True if TryGrow could succeed once the steps in flight have completed.
  bool CouldGrowLater(SequenceId id, int64_t num_tokens, TableShift shift = {}) const;
  // True if TryGrow, without a shift, would have nothing to do.
  bool Covers(SequenceId id, int64_t num_tokens) const;
  // A number that rises whenever tables may no longer write into blocks in which they had room,
  // because forks or pins hold these too. As long as it stands, what TryGrow has covered, up to the
  // end of the last block, stays writable, unless the table is shifted or released, or Reorder
  // gives it to others.
  int64_t num_seals() const { return num_seals_; }
  // Returns the number of blocks that TryGrow would take now, less those that it would free.
  int64_t NumBlocksToGrow(SequenceId id, int64_t num_tokens, TableShift shift = {}) const;

  // Attaches parts, in every window, to the table's new blocks up to token num_tokens. TryGrow must
  // have covered num_tokens. A step may write at most max_step_tokens new tokens of a sequence.
  void PrepareWrite(SequenceId id, int64_t num_tokens);

  // Ends the building of a step and appends its copies to `copies` and its shifts to `shifts`. If
  // `submitted`, the step is then in flight. It runs the copies first and the shifts next. If not
  // `submitted`, the step must have no copies or shifts, and no sequence may have started in it.
  void EndStep(bool submitted, std::vector<kernels::BlockCopy>* copies,
               std::vector<kernels::KeyShift>* shifts);

  // --- When a step has run.

  // Releases the blocks, and places in windows, that were quarantined until this step.
  void CompleteStep(int64_t step);

  // Makes the first `num_computed` tokens of `tokens`, which may be longer, available to other
  // sequences. Completed steps must have written K and V of these tokens. Also releases the window
  // parts of blocks that have left the sequence's windows. num_computed may fall between calls only
  // after a shift. After a shift it counts tokens of the shifted table.
  void Commit(SequenceId id, std::span<const int32_t> tokens, int64_t num_computed);
  // Commit() for each, with the tokens of a last block that is now full. It is faster, because the
  // memory of the next ones is loaded meanwhile.
  struct Computed {
    SequenceId id = 0;
    std::span<const int32_t> tokens;
    int64_t num_tokens = 0;  // that are computed
  };
  void CommitAll(std::span<const Computed> all);

  // Creates a child that shares everything the parent committed. No step in flight may be writing
  // for the parent. Returns false, and creates no child, when the windows have no place for a
  // child.
  bool TryFork(SequenceId parent, SequenceId child);

  // --- Of sequences that run together: the beams of one request, all with the same number of
  // tokens.

  // Makes ids[1], ids[2] .. children of ids[0], which was started with access.num_together of their
  // number. They share everything that it committed. From now on, nothing that any of them computes
  // is made available to others. No step in flight may be writing for ids[0].
  void ForkTogether(std::span<const SequenceId> ids);

  // The blocks that TryGrowTogether would take now, and how many of them become copies.
  struct Growth {
    int64_t num_blocks = 0;
    int64_t num_copies = 0;
  };
  Growth GrowthTogether(std::span<const SequenceId> ids, int64_t num_tokens) const;
  // TryGrow for all of them, or for none. Of those that share a block to write into, the last keeps
  // it, and the others get copies.
  bool TryGrowTogether(std::span<const SequenceId> ids, int64_t num_tokens);
  bool CouldGrowTogetherLater(std::span<const SequenceId> ids, int64_t num_tokens) const;
  // Gives sequence ids[i] the table of ids[parents[i]]. A sequence that is a parent keeps its own
  // table: parents[parents[i]] is parents[i]. All of them have committed equally many tokens, and
  // no step in flight reads or writes for them.
  void Reorder(std::span<const SequenceId> ids, std::span<const int32_t> parents);

  // --- Of blocks whose K and V are not computed, but come from elsewhere. No layer has a window.

  // Begins to load: takes blocks for all of `tokens`, which fill whole blocks, but for those that
  // the cache has under the root of root_key. `id` is that of no sequence; Table(id) has the
  // blocks. Returns the number of leading blocks that the cache had, whose contents are there
  // already. Returns -1, and takes nothing, if too few blocks are available.
  int64_t TryBeginLoad(SequenceId id, std::string_view root_key, std::span<const int32_t> tokens,
                       TenantCharges::Payer payer);
  // Ends it: the first `num_loaded` of `tokens` are there, and are made available to sequences. All
  // blocks are released; those of these tokens stay cached.
  void EndLoad(SequenceId id, std::span<const int32_t> tokens, int64_t num_loaded);

  // --- At any time.

  // Returns the number of leading tokens that the prefix cache has, at most tokens.size() - 1.
  // StartSequence may use fewer tokens, because a window may lack parts of the blocks.
  int64_t NumCached(std::string_view root_key, std::span<const int32_t> tokens, PinId on = kNoPin);

  // Pins the blocks of `tokens`, which are not empty, under the root of root_key, which is that of
  // no pin. Returns false, and pins nothing, unless the cache has all of them and, in every window,
  // the parts that a sequence needs to continue in or after the last block, and places to hold
  // these parts. A pinned block is not evicted, and nothing is appended to the last one: a sequence
  // that would write into it copies it first. `payer` pays for the blocks while the pin stands.
  bool TryPin(PinId pin, std::string_view root_key, std::span<const int32_t> tokens,
              TenantCharges::Payer payer = TenantCharges::kNamelessPayer);
  // Pins what the sequence has committed: its leading blocks. Returns the number of tokens in them.
  // Returns 0, and pins nothing, unless all of these blocks are listed, and every window has the
  // parts and the places that TryPin wants. No sequence runs on such a pin. The sequence's payer
  // pays for the blocks while the pin stands.
  int64_t TryPinTable(PinId pin, SequenceId id);
  // Pins what another pin holds of `tokens`, which are not empty. Returns false, and pins nothing,
  // unless `from` stands, begins with all of them, and every window has the parts and the places
  // that TryPin wants. The payer of `from` pays. No sequence runs on such a pin.
  bool TryPinFork(PinId pin, PinId from, std::span<const int32_t> tokens);
  // Ends a pin. Sequences that share its blocks keep them.
  void Unpin(PinId pin);
  bool IsPinned(PinId pin) const { return pins_.contains(pin); }
  // The block ids of group 0 that a pin holds, as long as it stands.
  std::span<const int32_t> TableOfPin(PinId pin) const { return pins_.at(pin).blocks; }

  // Releases everything that the sequence holds. Listed blocks stay cached. The copies and shifts
  // of the sequence in the step being built are taken back. `end` tells the prefix cache how the
  // sequence used its blocks. A sequence that started in the step being built has not used them.
  void Release(SequenceId id, const CacheUseEnd& end = {});

  // Releases the sequence and removes its blocks from the cache. The removal begins at the last
  // block and stops at a block that another sequence holds or continues.
  void ReleaseUnlisted(SequenceId id);

  // Frees at most `at_most` cached blocks, in the order of eviction. Returns the number of blocks
  // freed.
  int64_t FreeCached(int64_t at_most);

  // The charges of tenants for the blocks that their sequences, pins and copies hold.
  TenantCharges& charges() { return store_.charges(); }
  const TenantCharges& charges() const { return store_.charges(); }

  // Begins to load a part of what TryGrow (kLastCounts) and Commit (kLastBlock) touch of a
  // sequence. The address of each part stands in the one before.
  enum class Part : uint8_t { kRecord, kTable, kLastCounts, kLastBlock };
  void Prefetch(SequenceId id, Part part) const;

  bool Holds(SequenceId id) const { return sequences_.contains(id); }
  int32_t num_kv_groups() const { return 1 + static_cast<int32_t>(store_.num_windows()); }
  // The block ids of group 0; valid until the next call that changes the sequence.
  std::span<const int32_t> Table(SequenceId id) const;
  // Returns the run of the table's blocks that have parts in a group. In group 0 this is the whole
  // table.
  BlockTable::Run RunIn(int32_t kv_group, SequenceId id) const;
  // Returns the part that a block of group 0 has in `kv_group`; -1 if it has none.
  int32_t BlockIn(int32_t kv_group, int32_t block) const {
    return kv_group == 0 ? block : store_.window(kv_group - 1).Find(block);
  }
  // The blocks that only one sequence holds, and the committed tokens in these blocks. When the
  // sequence is released, each of these blocks is freed or becomes evictable, so its tokens may
  // have to be computed again.
  struct Exclusive {
    int64_t num_blocks = 0;
    int64_t num_tokens = 0;
  };
  Exclusive ExclusiveOf(SequenceId id) const;

  // Returns the payers of each block, each once for each hold. For tests.
  std::vector<std::vector<TenantCharges::Payer>> ListHolds() const;

  // Begins a picture of the cache: copies the cells, and counts who runs on pins. A picture that
  // was begun before is dropped.
  void BeginMap();
  // Visits at most `at_most` blocks and roots of the prefix tree. Returns the picture when it is
  // whole, else null.
  std::shared_ptr<const CacheMap> ContinueMap(int32_t at_most);

  BlockStats stats() const;
  WindowStats window_stats(int32_t kv_group) const;  // kv_group: 1 .. num_kv_groups() - 1
  // Recounts everything from the tables, the tree and the holds. Aborts on a difference. Checks
  // that free + cached + held == total, that each reference count equals the number of tables and
  // handles that hold the block, and that every cached block can be evicted. Checks the blocks of
  // windows in the same way. Also checks that every block in a window of a sequence has a part.
  void CheckInvariants() const;

 private:
  // What a decode reads is in the first line of a CPU cache: the members up to the table's blocks.
  struct alignas(64) Held {
    int64_t num_committed = 0;
    // The leading blocks that are not listed under `root`: the whole blocks of the pin on which the
    // sequence runs.
    int64_t num_base_blocks = 0;
    CacheAccess access;
    RootId root = -1;
    BlockTable table;
    int64_t num_reserved = 0;  // tokens that have reserved places in the windows
    int64_t start_step = -1;   // the step in which the sequence started
    int64_t copy_step = -1;    // the step of the sequence's last copies or shifts
    // The blocks that are held until copy_step has completed: the sources of copies, and listed
    // blocks that a shift removed.
    std::vector<int32_t> sources;
    CacheUse use;
    bool spills = false;  // its whole blocks are offered to config_.spill
  };
  // The record of a sequence that was found last, among those with equal ids modulo kNumFound. Ids
  // are given in ascending order, so those of running sequences seldom collide.
  struct Found {
    SequenceId id = 0;
    Held* held = nullptr;
  };
  static constexpr size_t kNumFound = 4096;
  struct Pinned {
    std::vector<int32_t> blocks;  // listed; a path, or two of which one follows the other
    int64_t num_tokens = 0;
    std::vector<int64_t> begins;  // by window: the first block whose part is held
    TenantCharges::Payer payer = TenantCharges::kNamelessPayer;

    int64_t num_whole(int32_t block_size) const { return num_tokens / block_size; }
  };
  // Finds the longest cached prefix of `tokens` for a sequence. Sets matched_ to its whole blocks.
  // `pinned`: the pin on which the sequence runs, or null.
  PrefixCache::Match Match(RootId root, std::span<const int32_t> tokens, const Pinned* pinned);
  // Returns the root under which a sequence lists its blocks, and adds a reference to it. Sets
  // `pinned` to the pin on which the sequence runs; null if there is none, or if it has ended.
  RootId AcquireRoot(std::string_view root_key, PinId on, const Pinned** pinned);
  bool TryPinParts(Pinned& pinned);
  void AddPin(PinId pin, Pinned pinned);
  void CheckPins(std::vector<int32_t>& pin_refs) const;
  Held& Find(SequenceId id);
  const Held& Find(SequenceId id) const;
  Held& Insert(SequenceId id);
  void Erase(SequenceId id);
  // Makes `child` share everything that the parent committed. It has its access and its places in
  // windows already.
  void Fork(const Held& parent, Held& child);
  // These functions record the copies and shifts that the step being built will run before it
  // writes K and V. TakeBackCopies removes those of one sequence.
  void BeginCopies(Held& held);
  void AddCopy(Held& held, int32_t source, int32_t destination);
  void Shift(Held& held, TableShift shift);
  void TakeBackCopies(Held& held);
  // Returns the index of the first block that a query at `position` sees in window w.
  int64_t WindowBegin(size_t w, int64_t position) const;
  // Returns the number of blocks to reserve in window w for a sequence of `num_tokens` tokens.
  int64_t WindowDemand(size_t w, int64_t num_tokens) const;
  // Returns how much more `held` must reserve in window w to have `num_tokens` tokens.
  int64_t MoreDemand(size_t w, const Held& held, int64_t num_tokens) const;
  bool CanReserve(const Held& held, int64_t num_tokens) const;
  // `later`: once the steps in flight have completed.
  bool CanReserveTogether(std::span<const SequenceId> ids, int64_t num_tokens, bool later) const;
  bool TryReserve(Held& held, int64_t num_tokens);
  // Removes whole blocks from the end of `match` until a sequence can continue after the last one:
  // each window must have parts of all earlier blocks that the next query sees. Keeps the partially
  // matched block only if no whole block is removed and every window has a part of the partially
  // matched block.
  void TrimToWindows(PrefixCache::Match& match);
  void LeaveWindows(Held& held);
  void CheckWindows() const;
  // `last`: the hash of the last block, if only that one is left to commit and is full.
  void Commit(const Computed& computed, const ChainHash* last);
  // Returns `last` for Commit, and begins to load what it leads to; nullopt if there is none.
  std::optional<ChainHash> HashLast(const Computed& computed) const;
  // Commits tokens [num_committed, end), all of one block. `whole`: its hash, if that is known.
  void CommitInBlock(Held& held, std::span<const int32_t> tokens, int64_t end,
                     const ChainHash* whole);

  const BlockManagerConfig config_;
  const int32_t block_size_;
  BlockStore store_;
  // The records lie side by side, since a step goes from one to the next.
  using Sequences = std::pmr::unordered_map<SequenceId, Held>;
  std::pmr::unsynchronized_pool_resource records_;
  Sequences sequences_{&records_};
  std::vector<Found> found_ = std::vector<Found>(kNumFound);
  std::unordered_map<PinId, Pinned> pins_;
  PinEnds pin_ends_;
  std::unique_ptr<CacheWalk> walk_;  // null unless a picture is made
  CacheMap map_;                     // without nodes; of walk_
  // Records of released sequences, kept for the capacity of their vectors.
  std::vector<Sequences::node_type> spare_;
  // Scratch of StartSequence.
  std::vector<int32_t> matched_;
  std::vector<int64_t> begins_;
  std::vector<bool> continuable_;
  std::vector<std::optional<ChainHash>> hashes_;  // scratch of CommitAll
  std::string ended_key_;                         // scratch of AcquireRoot
  // The copies and shifts of the step being built.
  std::vector<kernels::BlockCopy> copies_;
  std::vector<kernels::KeyShift> shifts_;
  int64_t num_seals_ = 0;
  int64_t num_hit_blocks_ = 0;
  int64_t num_partial_hits_ = 0;
  int64_t num_copies_ = 0;
  int64_t num_deduplicated_ = 0;
};

}  // namespace quire::engine
