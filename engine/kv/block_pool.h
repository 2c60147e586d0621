#pragma once

// Tracks which blocks are free, and counts the holders of every other block.

#include <cstdint>
#include <span>
#include <vector>

#include "base/huge_allocator.h"
#include "engine/request/cache_map.h"

namespace quire::engine {

// The pool has blocks 0 .. num_blocks - 1. A block is
//   free     on the free list;
//   held     by the tables of sequences, by handles or by pins. A handle only keeps the block alive
//            for a copy or a step in flight. A pin keeps it for requests to come, until its owner
//            ends it;
//   cached   held by nobody, but listed in the prefix cache. It may be held again, or evicted.
// Every operation is O(1); nothing is allocated after construction. Not thread-safe.
class BlockPool {
 public:
  enum class State : uint8_t { kFree, kCached, kHeld };

  explicit BlockPool(int32_t num_blocks);

  // Returns a free block, which one table now holds; -1 when no block is free.
  int32_t Take();
  // Lets one table hold `block`, a cached block that the prefix cache has just unlisted.
  void TakeEvicted(int32_t block);

  // These functions add a holder. They return true if the block was cached until now.
  bool AddTableRef(int32_t block) { return Add(block, &Block::table_refs); }
  bool AddHandleRef(int32_t block) { return Add(block, &Block::handle_refs); }
  bool AddPinRef(int32_t block) { return Add(block, &Block::pin_refs); }
  // These functions remove a holder. They return true if the removed holder was the last one. The
  // block is then cached if the prefix cache lists it, and free otherwise.
  bool DropTableRef(int32_t block) { return Drop(block, &Block::table_refs); }
  bool DropHandleRef(int32_t block) { return Drop(block, &Block::handle_refs); }
  bool DropPinRef(int32_t block) { return Drop(block, &Block::pin_refs); }
  // Turns one table's hold of the block into a hold by a handle.
  void TableRefToHandle(int32_t block);

  // Records whether the prefix cache lists the block, which must be held. TakeEvicted also records
  // that the block is not listed.
  void SetListed(int32_t block, bool listed);

  // Begins to load the block's counts.
  void Prefetch(int32_t block) const { __builtin_prefetch(&blocks_[block], 1); }

  State state(int32_t block) const;
  int32_t table_refs(int32_t block) const { return blocks_[block].table_refs; }
  int32_t handle_refs(int32_t block) const { return blocks_[block].handle_refs; }
  int32_t pin_refs(int32_t block) const { return blocks_[block].pin_refs; }
  int32_t refs(int32_t block) const { return blocks_[block].refs(); }  // of all three kinds
  bool listed(int32_t block) const { return blocks_[block].listed; }

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_free() const { return num_free_; }
  int32_t num_cached() const { return num_cached_; }
  int32_t num_held() const { return num_blocks() - num_free_ - num_cached_; }
  // Held blocks that handles alone hold, so that they become available when the steps in flight
  // have completed.
  int32_t num_held_by_handles_only() const { return num_handles_only_; }
  int32_t num_pinned() const { return num_pinned_; }
  // The blocks in kMostMapCells cells at most, each with as many ids, but for the last.
  std::span<const CacheMapCell> cells() const { return cells_; }

  // Walks the free list and recounts; aborts on any difference.
  void CheckInvariants() const;

 private:
  struct Block {
    int32_t table_refs = 0;
    int32_t handle_refs = 0;
    int32_t pin_refs = 0;
    bool listed = false;
    bool free = true;

    int32_t refs() const { return table_refs + handle_refs + pin_refs; }
    bool shared() const { return table_refs + pin_refs > 1; }
    bool handles_only() const { return handle_refs > 0 && table_refs == 0 && pin_refs == 0; }
  };
  static_assert(sizeof(Block) == 16, "no block is in two lines of a CPU cache");
  bool Add(int32_t block, int32_t Block::*refs);
  bool Drop(int32_t block, int32_t Block::*refs);
  // Adds `by` to each count in which the block is counted. Called before a change of the block's
  // holders with -1, and after it with 1.
  void Count(const Block& block, int32_t by);

  base::HugeVector<Block> blocks_;
  // The free list: the block after each free block; -1: none.
  base::HugeVector<int32_t> next_free_;
  int32_t first_free_ = 0;
  int32_t num_free_ = 0;
  int32_t num_cached_ = 0;
  int32_t num_handles_only_ = 0;
  int32_t num_pinned_ = 0;
  std::vector<CacheMapCell> cells_;
  int32_t cell_shift_ = 0;  // a cell has 2^cell_shift_ blocks
};

}  // namespace quire::engine
