#pragma once

// Keeps the block pool, the prefix tree and the blocks of windows consistent with each other and
// with the steps in flight.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/block_pool.h"
#include "engine/kv/block_spill.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/tenant_charges.h"
#include "engine/kv/window_blocks.h"

namespace quire::engine {

// If a block is dropped while a step in flight may still touch it, it is quarantined: a handle
// holds it until that step has completed. A handle also holds the source of a copy until the step
// that runs the copy has completed. Blocks of windows are held in the same way. Not thread-safe;
// nothing is allocated per step after warm-up.
class BlockStore {
 public:
  using Payer = TenantCharges::Payer;

  // `window_blocks`: the number of blocks of each window. `spill` is told of blocks that are listed
  // no more, and must outlive the store; may be null.
  BlockStore(int32_t num_blocks, int32_t block_size, std::span<const int32_t> window_blocks = {},
             EvictionPolicy policy = EvictionPolicy::kReuse, BlockSpill* spill = nullptr);

  const BlockPool& pool() const { return pool_; }
  PrefixCache& cache() { return cache_; }
  const PrefixCache& cache() const { return cache_; }
  // Every hold has a payer: the tenant of the table, the pin or the copy.
  TenantCharges& charges() { return charges_; }
  const TenantCharges& charges() const { return charges_; }

  // Begins to load the counts of a block's holders, which Hold, Pin and Drop touch.
  void PrefetchCounts(int32_t block) const {
    pool_.Prefetch(block);
    charges_.Prefetch(block);
  }
  // Begins to load what a decode touches of the block that it writes into.
  void Prefetch(int32_t block) const {
    pool_.Prefetch(block);
    cache_.Prefetch(block);
  }

  // The number of blocks that Take() can return: free ones and cached ones.
  int64_t num_available() const { return int64_t{pool_.num_free()} + pool_.num_cached(); }
  int64_t num_quarantined() const { return pool_.num_held_by_handles_only(); }
  int64_t num_evictions() const { return num_evictions_; }

  size_t num_windows() const { return windows_.size(); }
  WindowBlocks& window(size_t w) { return windows_[w]; }
  const WindowBlocks& window(size_t w) const { return windows_[w]; }
  // The number of reserved blocks of a window that become unreserved when the steps in flight have
  // completed.
  int64_t num_reserved_in_flight(size_t w) const {
    return holds_[0].windows[w].num_reserved + holds_[1].windows[w].num_reserved;
  }

  bool HasCompleted(int64_t step) const { return step <= completed_; }

  // Returns a block that one table now holds: a free block or, if none is free, a cached block,
  // which is evicted. Returns -1 when no block is free or cached.
  int32_t Take(Payer payer = TenantCharges::kNamelessPayer);
  // Evicts and frees the next cached block. Returns false when there is none.
  bool FreeCached();
  // Adds one table's hold of `block`, which is not free.
  void Hold(int32_t block, Payer payer = TenantCharges::kNamelessPayer);
  // Adds a pin to `block`, which the cache lists, or takes one away. A pinned block is held, so it
  // is not evicted. Its parent must be pinned as well.
  void Pin(int32_t block, Payer payer);
  void Unpin(int32_t block, Payer payer);
  // True if Drop(block) would free it at once.
  bool FreedByDrop(int32_t block) const;
  // Drops one table's hold of `block`. `in_flight`: a step in flight may touch the block through
  // that table.
  void Drop(int32_t block, bool in_flight = true, Payer payer = TenantCharges::kNamelessPayer);

  // Drops one table's hold of the part that `block` has in window w. `in_flight`: as in Drop.
  void DropWindow(size_t w, int32_t block, bool in_flight = true);
  // Unreserves blocks that a table reserved in window w. `in_flight`: as in Drop.
  void Unreserve(size_t w, int64_t num_blocks, bool in_flight = true);

  // Holds `block`, the source of a copy in the step being built, and its parts in windows until
  // that step has completed.
  void HoldSource(int32_t block, Payer payer = TenantCharges::kNamelessPayer);
  // Like HoldSource, but takes over one table's holds of the block and its parts, and adds none.
  // The table must no longer use the block.
  void TurnIntoSource(int32_t block, Payer payer = TenantCharges::kNamelessPayer);
  // Undoes HoldSource or TurnIntoSource for a copy that will not run. `in_flight`: a step in flight
  // may touch the block through the table that TurnIntoSource took the holds from.
  void DropSource(int32_t block, Payer payer = TenantCharges::kNamelessPayer,
                  bool in_flight = false);

  // See PrefixCache.
  void List(int32_t block, RootId root, int32_t parent, std::span<const int32_t> tokens,
            const ChainHash* whole = nullptr);
  void Unlist(int32_t block);
  // Like Unlist, of a block whose K and V may be unsound.
  void Discard(int32_t block);

  // A step's number is one more than that of the last submitted step. A step may be built while
  // that one is in flight. `now_ms` is the time for the prefix cache until the next step begins.
  void BeginStep(int64_t step, int64_t now_ms = 0);
  void EndStep(bool submitted);
  void CompleteStep(int64_t step);
  bool building() const { return building_; }
  int64_t step() const { return step_; }  // the step begun last
  int64_t now_ms() const { return now_ms_; }

  void CheckInvariants() const;
  // The number of handles that hold each block, for BlockManager::CheckInvariants.
  std::vector<int32_t> CountHandles() const;
  // Appends the payer of each handle to that of its block.
  void ListHandles(std::vector<std::vector<Payer>>& holds) const;
  std::vector<int32_t> CountWindowHolds(size_t w) const;

 private:
  // The holds that are dropped when a step has completed.
  struct Handle {
    int32_t block = -1;
    Payer payer = TenantCharges::kNamelessPayer;
    bool operator==(const Handle&) const = default;
  };
  struct Holds {
    std::vector<Handle> handles;
    struct Window {
      std::vector<int32_t> blocks;
      int64_t num_reserved = 0;
    };
    std::vector<Window> windows;
  };
  // Unlists the next cached block, which one table then holds; -1 when there is none.
  int32_t TakeCached();
  // Called when the last table or handle has dropped the block.
  void Unheld(int32_t block);
  void DropHandle(const Handle& handle);
  bool in_flight() const { return submitted_ > completed_; }
  Holds& HoldsOf(int64_t step) { return holds_[step & 1]; }

  BlockSpill* const spill_;  // not owned
  BlockPool pool_;
  PrefixCache cache_;
  TenantCharges charges_;
  std::vector<WindowBlocks> windows_;
  bool building_ = false;
  int64_t step_ = 0;
  int64_t now_ms_ = 0;
  int64_t submitted_ = 0;  // the last submitted step
  int64_t completed_ = 0;  // the last completed step; later ones, up to submitted_, are in flight
  std::array<Holds, 2> holds_;
  int64_t num_evictions_ = 0;
};

}  // namespace quire::engine
