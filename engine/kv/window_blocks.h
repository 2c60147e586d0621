#pragma once

// The blocks in which the layers of one window keep their K and V.

#include <cstdint>
#include <vector>

namespace quire::engine {

// A sequence's table names blocks for the full-attention layers. The layers of one window have a
// smaller memory of their own. Each block of this memory belongs to one block of the tables, called
// its owner. The block holds K and V of the same tokens as its owner and is shared when the owner
// is shared. An owner that has left the window may lose the block and live on.
//
// A block of the window is
//   free    without owner and holders;
//   held    by tables whose window contains the block, or by holders that only keep it alive (for
//           a copy or a step in flight);
//   spare   held by nobody, but with an owner. The owner may be cached, and a sequence could
//           continue from it. Attach() may take spare blocks away. The block that was left longest
//           ago is taken first.
//
// Blocks are reserved before they are attached. A table reserves as many blocks as it can hold at
// once and attaches them as its tokens come. So Attach() cannot fail.
//
// Every operation is O(1); nothing is allocated after construction. Not thread-safe.
class WindowBlocks {
 public:
  // Owners are 0 .. num_owners - 1.
  WindowBlocks(int32_t num_blocks, int32_t num_owners);

  // Reserves blocks for one table. Returns false, and changes nothing, when too few are unreserved.
  bool TryReserve(int64_t num_blocks);
  void Unreserve(int64_t num_blocks) { num_reserved_ -= num_blocks; }
  int64_t num_unreserved() const { return num_blocks() - num_reserved_; }

  // Returns the block of `owner`; -1 if the owner has none.
  int32_t Find(int32_t owner) const { return block_of_[owner]; }

  // Gives a block to `owner`, which must have none. The block is then held once.
  void Attach(int32_t owner);
  void Hold(int32_t block);
  void Drop(int32_t block);
  // Takes the block, if any, from `owner`. The block is freed now, or when its last holder
  // drops it.
  void Detach(int32_t owner);
  // Gives the block of `from` to `to`, which must have no block and hold the same tokens.
  void Move(int32_t from, int32_t to);

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_free() const { return num_free_; }
  int32_t num_spare() const { return num_spare_; }
  int32_t num_held() const { return num_blocks() - num_free_ - num_spare_; }
  int64_t num_taken_away() const { return num_taken_away_; }  // since the start
  int32_t refs(int32_t block) const { return blocks_[block].refs; }

  // Walks the lists and recounts; aborts on any difference.
  void CheckInvariants() const;

 private:
  struct Block {
    int32_t owner = -1;
    int32_t refs = 0;
    // Links of the free list or of the list of spare blocks.
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
