#pragma once

// The blocks of one sequence, in the order of its tokens.

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/block_store.h"
#include "kernels/ops/copy_blocks.h"

namespace quire::engine {

// Block i holds tokens [i * block_size, (i + 1) * block_size). A block may have a part in a window:
// K and V of its tokens for the layers of the window (see WindowBlocks). The table holds all its
// blocks. In each window, the table holds the parts of a run of consecutive blocks. The store
// counts one hold of a block or part for each table that holds it. Clear() drops the table's holds.
// Not thread-safe.
class BlockTable {
 public:
  std::span<const int32_t> blocks() const { return blocks_; }
  // The tenant that pays for what the table holds. Set while the table is empty.
  void set_payer(TenantCharges::Payer payer) { payer_ = payer; }
  TenantCharges::Payer payer() const { return payer_; }
  int64_t size() const { return static_cast<int64_t>(blocks_.size()); }

  // Blocks [begin, end) have parts in a window.
  struct Run {
    int64_t begin = 0;
    int64_t end = 0;
  };
  std::span<const Run> windows() const { return windows_; }
  // Begins the runs of an empty table: blocks before begins[w] will have no part in window w.
  void StartWindows(std::span<const int64_t> begins);
  // Extends the run of every window to block `end` by attaching parts. The parts must be reserved.
  void ExtendWindows(BlockStore& store, int64_t end);
  // Drops the parts that blocks before `begin` have in window w. These blocks have left the window.
  void LeaveWindow(BlockStore& store, size_t w, int64_t begin);

  // Appends blocks that others hold or the cache lists. Also holds a block's part in each window
  // whose run begins at this block or before.
  void AppendShared(BlockStore& store, std::span<const int32_t> blocks);
  // Appends a new block and returns it. Returns -1, and changes nothing, when none is available.
  int32_t AppendOwn(BlockStore& store);

  // Returns the number of blocks that TryGrow would take.
  int64_t NumBlocksToGrow(const BlockStore& store, int32_t block_size, int64_t first_write,
                          int64_t num_tokens) const;
  // Covers tokens [0, num_tokens) and makes [first_write, num_tokens) writable. If other tables or
  // pins also hold the block of first_write, this table continues with a copy of that block. Then
  // sets `copied` and describes the copy in `copy`. The copy must be made before the write, and its
  // source is held until the step being built has completed. Blocks after that of first_write are
  // never shared. The new block of a copy gets parts in windows at once; other new blocks get parts
  // from ExtendWindows. Returns false, and leaves the table as it is, when too few blocks are
  // available.
  bool TryGrow(BlockStore& store, int32_t block_size, int64_t first_write, int64_t num_tokens,
               kernels::BlockCopy* copy, bool* copied);

  // Returns the number of blocks that Shift would take, less those that it would free immediately.
  int64_t NumBlocksToShift(const BlockStore& store, int64_t begin, int64_t end) const;
  // Removes blocks [begin, end). Later blocks move up. A later block that others hold or the cache
  // lists is replaced by a copy, and the copy is appended to `copies`. The sources of the copies
  // are held until the step being built has completed. Removed blocks that are listed are held
  // until then, too, so that no source is held without its parents. All these held blocks are
  // appended to `sources`, tails first. NumBlocksToShift blocks must be available.
  void Shift(BlockStore& store, int64_t begin, int64_t end, std::vector<kernels::BlockCopy>* copies,
             std::vector<int32_t>* sources);

  // Shares the blocks of `parent` that hold its first num_tokens, and its payer. This table must be
  // empty.
  void ForkFrom(const BlockTable& parent, BlockStore& store, int32_t block_size,
                int64_t num_tokens);

  // Replaces block i by `block`, which has the same content and is held by others or is in the
  // cache. In each window in which block i has a part, this table then shares the part of `block`
  // if that part is held. Otherwise the part of block i becomes the part of `block`.
  void Replace(BlockStore& store, int64_t i, int32_t block);

  // Drops all blocks, last block first, because a prefix is useful without its suffix. `in_flight`:
  // see BlockStore::Drop.
  void Clear(BlockStore& store, bool in_flight);

 private:
  std::vector<int32_t> blocks_;
  TenantCharges::Payer payer_ = TenantCharges::kNamelessPayer;
  std::vector<Run> windows_;
};

}  // namespace quire::engine
