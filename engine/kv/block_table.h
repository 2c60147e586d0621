#pragma once

// The blocks of one sequence, in the order of its tokens.

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/block_store.h"
#include "kernels/ops/copy_blocks.h"

namespace quire::engine {

// Block i holds tokens [i * block_size, (i + 1) * block_size). The store counts one hold of a block
// for each table that contains it; Clear() releases them. In each window a run of the blocks has
// parts, which are held in the same way. Not thread-safe.
class BlockTable {
 public:
  std::span<const int32_t> blocks() const { return blocks_; }
  int64_t size() const { return static_cast<int64_t>(blocks_.size()); }

  // Blocks [begin, end) have their part in a window.
  struct Run {
    int64_t begin = 0;
    int64_t end = 0;
  };
  std::span<const Run> windows() const { return windows_; }
  // On an empty table: blocks before begins[w] will have no part in window w.
  void StartWindows(std::span<const int64_t> begins);
  // Attaches parts to all blocks before `end`. The table has reserved them.
  void ExtendWindows(BlockStore& store, int64_t end);
  // Drops the parts of blocks before `begin`, which have left window w.
  void LeaveWindow(BlockStore& store, size_t w, int64_t begin);

  // Append one block: one that others hold or the cache has, with its parts in windows that have
  // begun; or a new one (-1, and nothing changed, when none is available).
  void AppendShared(BlockStore& store, int32_t block);
  int32_t AppendOwn(BlockStore& store);

  // Blocks that TryGrow would take.
  int64_t NumBlocksToGrow(const BlockStore& store, int32_t block_size, int64_t first_write,
                          int64_t num_tokens) const;
  // Covers tokens [0, num_tokens) and makes [first_write, num_tokens) writable. If other tables
  // hold the block of first_write too, this table continues with a copy, which `copy` names and
  // which must be made before the write; the source is held until the step being built has
  // completed. Later blocks are never shared. Returns false, and changes nothing, when blocks are
  // lacking. A copy has its parts in windows at once; new blocks get theirs from ExtendWindows.
  bool TryGrow(BlockStore& store, int32_t block_size, int64_t first_write, int64_t num_tokens,
               kernels::BlockCopy* copy, bool* copied);

  // The number of blocks that Shift would take, less the number that it would free at once.
  int64_t NumBlocksToShift(const BlockStore& store, int64_t begin, int64_t end) const;
  // Removes blocks [begin, end). Those after them move up and become the table's own: a block that
  // others hold or the cache lists is copied, and the copy is appended to `copies`. The sources are
  // held until the step being built has completed. So are the listed blocks that are removed, lest
  // a source be held without its parents. All of these are appended to `sources`, tails first.
  // NumBlocksToShift blocks must be available.
  void Shift(BlockStore& store, int64_t begin, int64_t end, std::vector<kernels::BlockCopy>* copies,
             std::vector<int32_t>* sources);

  // Shares the blocks of `parent` that hold its first num_tokens. This table is empty.
  void ForkFrom(const BlockTable& parent, BlockStore& store, int32_t block_size,
                int64_t num_tokens);

  // Replaces block i by `block`, which has the same content and is held by others or is in the
  // cache. If this table has a part of block i in a window, it shares the part of `block` there; if
  // nobody holds that part, this table's part moves to `block`.
  void Replace(BlockStore& store, int64_t i, int32_t block);

  // From the tail: a prefix is useful without its suffix. `in_flight`: see BlockStore::Drop.
  void Clear(BlockStore& store, bool in_flight);

 private:
  std::vector<int32_t> blocks_;
  std::vector<Run> windows_;
};

}  // namespace quire::engine
