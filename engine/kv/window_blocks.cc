#include "engine/kv/window_blocks.h"

#include "base/check.h"

namespace quire::engine {

WindowBlocks::WindowBlocks(int32_t num_blocks, int32_t num_owners)
    : blocks_(num_blocks), block_of_(num_owners, -1) {
  // The free list starts in ascending order of ids, so that a small load touches little memory.
  for (int32_t i = num_blocks; i-- > 0;) Free(i);
}

bool WindowBlocks::TryReserve(int64_t num_blocks) {
  if (num_blocks > num_unreserved()) return false;
  num_reserved_ += num_blocks;
  return true;
}

void WindowBlocks::Attach(int32_t owner) {
  QUIRE_CHECK(block_of_[owner] < 0) << "block " << owner << " has one";
  int32_t block = first_free_;
  if (block >= 0) {
    first_free_ = blocks_[block].next;
    --num_free_;
  } else {
    block = first_spare_;
    QUIRE_CHECK(block >= 0) << "more blocks are held than were reserved";
    UnlinkSpare(block);
    block_of_[blocks_[block].owner] = -1;
    ++num_taken_away_;
  }
  blocks_[block] = {.owner = owner, .refs = 1};
  block_of_[owner] = block;
}

void WindowBlocks::Hold(int32_t block) {
  Block& b = blocks_[block];
  QUIRE_CHECK(b.owner >= 0 || b.refs > 0) << "block " << block << " is free";
  if (b.refs++ == 0) UnlinkSpare(block);
}

void WindowBlocks::Drop(int32_t block) {
  Block& b = blocks_[block];
  QUIRE_CHECK(b.refs > 0) << "block " << block << " is held by nobody";
  if (--b.refs > 0) return;
  if (b.owner >= 0) {
    LinkSpare(block);
  } else {
    Free(block);
  }
}

void WindowBlocks::Detach(int32_t owner) {
  const int32_t block = block_of_[owner];
  if (block < 0) return;
  block_of_[owner] = -1;
  blocks_[block].owner = -1;
  if (blocks_[block].refs > 0) return;
  UnlinkSpare(block);
  Free(block);
}

void WindowBlocks::Move(int32_t from, int32_t to) {
  const int32_t block = block_of_[from];
  QUIRE_CHECK(block >= 0 && block_of_[to] < 0) << from << " to " << to;
  block_of_[from] = -1;
  block_of_[to] = block;
  blocks_[block].owner = to;
}

void WindowBlocks::LinkSpare(int32_t block) {
  blocks_[block].previous = last_spare_;
  blocks_[block].next = -1;
  (last_spare_ < 0 ? first_spare_ : blocks_[last_spare_].next) = block;
  last_spare_ = block;
  ++num_spare_;
}

void WindowBlocks::UnlinkSpare(int32_t block) {
  const Block& b = blocks_[block];
  (b.previous < 0 ? first_spare_ : blocks_[b.previous].next) = b.next;
  (b.next < 0 ? last_spare_ : blocks_[b.next].previous) = b.previous;
  --num_spare_;
}

void WindowBlocks::Free(int32_t block) {
  blocks_[block] = {.next = first_free_};
  first_free_ = block;
  ++num_free_;
}

void WindowBlocks::CheckInvariants() const {
  int32_t num_free = 0;
  for (int32_t i = first_free_; i >= 0; i = blocks_[i].next) {
    QUIRE_CHECK(blocks_[i].owner < 0 && blocks_[i].refs == 0) << "free block " << i;
    ++num_free;
  }
  int32_t num_spare = 0;
  int32_t before = -1;
  for (int32_t i = first_spare_; i >= 0; before = i, i = blocks_[i].next) {
    QUIRE_CHECK(blocks_[i].owner >= 0 && blocks_[i].refs == 0 && blocks_[i].previous == before)
        << "spare block " << i;
    ++num_spare;
  }
  QUIRE_CHECK(before == last_spare_ && num_free == num_free_ && num_spare == num_spare_)
      << num_free << " free and " << num_spare << " spare, " << num_free_ << " and " << num_spare_
      << " known of";
  int32_t num_held = 0;
  for (int32_t i = 0; i < num_blocks(); ++i) {
    num_held += blocks_[i].refs > 0 ? 1 : 0;
    const int32_t owner = blocks_[i].owner;
    QUIRE_CHECK(owner < 0 || block_of_[owner] == i) << "block " << i << " of " << owner;
  }
  QUIRE_CHECK(num_held == this->num_held() && num_held <= num_reserved_ &&
              num_reserved_ <= num_blocks())
      << num_held << " held, " << num_reserved_ << " reserved";
  for (int32_t owner = 0; owner < static_cast<int32_t>(block_of_.size()); ++owner) {
    QUIRE_CHECK(block_of_[owner] < 0 || blocks_[block_of_[owner]].owner == owner)
        << "owner " << owner;
  }
}

}  // namespace quire::engine
