#include "engine/kv/block_pool.h"

#include "base/check.h"

namespace quire::engine {

BlockPool::BlockPool(int32_t num_blocks)
    : blocks_(num_blocks), next_free_(num_blocks), num_free_(num_blocks) {
  QUIRE_CHECK(num_blocks > 0) << "num_blocks " << num_blocks;
  // The free list starts in ascending order of ids, so that a small load touches little memory.
  for (int32_t i = 0; i < num_blocks; ++i) next_free_[i] = i + 1 < num_blocks ? i + 1 : -1;
  while ((num_blocks - 1) >> cell_shift_ >= kMostMapCells) ++cell_shift_;
  cells_.resize(((num_blocks - 1) >> cell_shift_) + 1);
  for (int32_t i = 0; i < num_blocks; ++i) ++cells_[i >> cell_shift_].num_blocks;
}

int32_t BlockPool::Take() {
  if (first_free_ < 0) return -1;
  const int32_t id = first_free_;
  Block& block = blocks_[id];
  first_free_ = next_free_[id];
  --num_free_;
  block = {.table_refs = 1, .free = false};
  Count(block, 1);
  return id;
}

void BlockPool::TakeEvicted(int32_t block) {
  QUIRE_CHECK(state(block) == State::kCached) << "block " << block;
  --num_cached_;
  Count(blocks_[block], -1);
  blocks_[block] = {.table_refs = 1, .free = false};
  Count(blocks_[block], 1);
}

void BlockPool::Count(const Block& block, int32_t by) {
  num_handles_only_ += block.handles_only() ? by : 0;
  num_pinned_ += block.pin_refs > 0 ? by : 0;
  if (block.free) return;
  CacheMapCell& cell = cells_[(&block - blocks_.data()) >> cell_shift_];
  (block.refs() > 0 ? cell.held : cell.cached) += by;
  cell.pinned += block.pin_refs > 0 ? by : 0;
  cell.shared += block.shared() ? by : 0;
}

bool BlockPool::Add(int32_t block, int32_t Block::*refs) {
  Block& b = blocks_[block];
  QUIRE_CHECK(!b.free) << "a free block is taken, not shared";
  const bool was_cached = b.refs() == 0;
  num_cached_ -= was_cached ? 1 : 0;
  if (b.*refs > 0) {  // a second holder of this kind changes no count of blocks
    ++(b.*refs);
    return false;
  }
  Count(b, -1);
  ++(b.*refs);
  Count(b, 1);
  return was_cached;
}

bool BlockPool::Drop(int32_t block, int32_t Block::*refs) {
  Block& b = blocks_[block];
  QUIRE_CHECK(b.*refs > 0) << "block " << block;
  if (b.*refs > 1) {  // see Add
    --(b.*refs);
    return false;
  }
  Count(b, -1);
  --(b.*refs);
  Count(b, 1);
  if (b.refs() > 0) return false;
  if (b.listed) {
    ++num_cached_;
  } else {
    Count(b, -1);
    // The block is put in front, because the block used last is likeliest to be in a CPU cache.
    b.free = true;
    next_free_[block] = first_free_;
    first_free_ = block;
    ++num_free_;
  }
  return true;
}

void BlockPool::TableRefToHandle(int32_t block) {
  Block& b = blocks_[block];
  QUIRE_CHECK(b.table_refs > 0) << "block " << block;
  Count(b, -1);
  --b.table_refs;
  ++b.handle_refs;
  Count(b, 1);
}

void BlockPool::SetListed(int32_t block, bool listed) {
  QUIRE_CHECK(state(block) == State::kHeld) << "block " << block;
  blocks_[block].listed = listed;
}

BlockPool::State BlockPool::state(int32_t block) const {
  const Block& b = blocks_[block];
  if (b.free) return State::kFree;
  return b.refs() > 0 ? State::kHeld : State::kCached;
}

void BlockPool::CheckInvariants() const {
  int32_t on_list = 0;
  for (int32_t i = first_free_; i >= 0; i = next_free_[i]) {
    QUIRE_CHECK(blocks_[i].free) << "block " << i << " is on the free list";
    QUIRE_CHECK(++on_list <= num_blocks()) << "the free list has a cycle";
  }
  int32_t cached = 0;
  int32_t held = 0;
  int32_t handles_only = 0;
  int32_t pinned = 0;
  int32_t free = 0;
  for (int32_t i = 0; i < num_blocks(); ++i) {
    const Block& b = blocks_[i];
    QUIRE_CHECK(b.table_refs >= 0 && b.handle_refs >= 0 && b.pin_refs >= 0) << "block " << i;
    if (state(i) == State::kFree) {
      ++free;
      QUIRE_CHECK(b.refs() == 0 && !b.listed) << "free block " << i;
    } else if (state(i) == State::kCached) {
      ++cached;
      QUIRE_CHECK(b.listed) << "block " << i << " is lost: neither free, held nor listed";
    } else {
      ++held;
      handles_only += b.table_refs == 0 && b.pin_refs == 0 ? 1 : 0;
      pinned += b.pin_refs > 0 ? 1 : 0;
      QUIRE_CHECK(b.listed || b.pin_refs == 0) << "block " << i << " is pinned, but not listed";
    }
  }
  QUIRE_CHECK(free == on_list && free == num_free_) << free << ' ' << on_list << ' ' << num_free_;
  QUIRE_CHECK(cached == num_cached_) << cached << ' ' << num_cached_;
  QUIRE_CHECK(held == num_held()) << held << ' ' << num_held();
  QUIRE_CHECK(handles_only == num_handles_only_) << handles_only << ' ' << num_handles_only_;
  QUIRE_CHECK(pinned == num_pinned_) << pinned << ' ' << num_pinned_;
  CacheMapCell all;
  for (const CacheMapCell& cell : cells_) all += cell;
  QUIRE_CHECK(all.num_blocks == num_blocks() && all.free() == free && all.cached == cached &&
              all.held == held && all.pinned == pinned)
      << all.free() << ' ' << all.cached << ' ' << all.held << ' ' << all.pinned;
}

}  // namespace quire::engine
