#pragma once

// Where the layers of one window keep their K and V.

#include <cstdint>
#include <vector>

namespace quire::engine {

// A sequence's table names blocks for the layers that see everything. The layers of one window have
// a smaller memory of their own: each of its blocks belongs to one block of the tables, its owner,
// holds K and V of the same tokens, and is shared with it. Behind the window an owner goes on
// without one.
//
// A block here is
//   free    no owner;
//   held    by tables in whose window it lies, or by what only must not lose it (a copy's source, a
//           step in flight);
//   spare   held by nobody, but its owner, which may be cached, could be continued from: the next
//           Attach() may take it away, those that were left longest ago first.
//
// Space is promised before it is taken: a table reserves as many blocks as it can hold at once, and
// takes them as its tokens come. So Attach() cannot fail.
//
// Every operation is O(1); nothing is allocated after construction. Not thread-safe.
class WindowBlocks {
 public:
  // Owners are 0 .. num_owners - 1.
  WindowBlocks(int32_t num_blocks, int32_t num_owners);

  // More of the space, or less, for one table. False, and nothing changed, when it is promised.
  bool TryReserve(int64_t num_blocks);
  void Unreserve(int64_t num_blocks) { num_reserved_ -= num_blocks; }
  int64_t num_unreserved() const { return num_blocks() - num_reserved_; }

  // The block of `owner`; -1: it has none.
  int32_t Find(int32_t owner) const { return block_of_[owner]; }

  // A block for `owner`, which has none; held once.
  void Attach(int32_t owner);
  void Hold(int32_t block);
  void Drop(int32_t block);
  // The owner is free: what it had goes, now or when the last holder has dropped it.
  void Detach(int32_t owner);
  // The tokens of `from` are also those of `to`, which has no block: it gets that of `from`.
  void Move(int32_t from, int32_t to);

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_free() const { return num_free_; }
  int32_t num_spare() const { return num_spare_; }
  int32_t num_held() const { return num_blocks() - num_free_ - num_spare_; }
  int64_t num_taken_away() const { return num_taken_away_; }  // since the start
  int32_t refs(int32_t block) const { return blocks_[block].refs; }

  // Walks the lists and counts again; aborts when anything differs.
  void CheckInvariants() const;

 private:
  struct Block {
    int32_t owner = -1;
    int32_t refs = 0;
    // Of the free list, or of the spare ones.
    int32_t previous = -1;
    int32_t next = -1;
  };
  void LinkSpare(int32_t block);
  void UnlinkSpare(int32_t block);
  void Free(int32_t block);

  std::vector<Block> blocks_;
  std::vector<int32_t> block_of_;  // by owner
  int32_t first_free_ = -1;
  int32_t first_spare_ = -1;  // left longest ago
  int32_t last_spare_ = -1;
  int32_t num_free_ = 0;
  int32_t num_spare_ = 0;
  int64_t num_reserved_ = 0;
  int64_t num_taken_away_ = 0;
};

}  // namespace quire::engine
