#pragma once

// The blocks of one sequence, in the order of its tokens.

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/block_store.h"
#include "kernels/ops/copy_blocks.h"

namespace quire::engine {

// Block i holds tokens [i * block_size, (i + 1) * block_size). Every block is held once in the
// store for each table that it is in; Clear() gives them back. In each window a run of the blocks
// has something, and that is held likewise. Not thread-safe.
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
  // Of an empty table: what comes before block begins[w] has no part in window w.
  void StartWindows(std::span<const int64_t> begins);
  // All blocks before `end` get their parts. The table has reserved them.
  void ExtendWindows(BlockStore& store, int64_t end);
  // Those before `begin` have left window w.
  void LeaveWindow(BlockStore& store, size_t w, int64_t begin);

  // One more block at the end: one that others hold or the cache has, with its parts in windows
  // that have begun; one of its own (-1, and nothing changed, when there is none).
  void AppendShared(BlockStore& store, int32_t block);
  int32_t AppendOwn(BlockStore& store);

  // Blocks that TryGrow would take.
  int64_t NumBlocksToGrow(const BlockStore& store, int32_t block_size, int64_t first_write,
                          int64_t num_tokens) const;
  // Covers tokens [0, num_tokens) and makes [first_write, num_tokens) writable: if other tables
  // hold the block of first_write too, this one goes on with a copy, to be made before the write:
  // `copy` then names it, and the source is held until the step being built has completed. Blocks
  // behind that one are never shared. False, and nothing changed, when blocks are lacking. New
  // blocks get parts in windows by ExtendWindows alone, copies at once.
  bool TryGrow(BlockStore& store, int32_t block_size, int64_t first_write, int64_t num_tokens,
               kernels::BlockCopy* copy, bool* copied);

  // Blocks that Shift would take, less those that it would free at once.
  int64_t NumBlocksToShift(const BlockStore& store, int64_t begin, int64_t end) const;
  // Blocks [begin, end) leave the table, and those behind move up and become its own: those that
  // others hold or the cache lists are copied, `copies` then names that (appended), and the sources
  // are held until the step being built has completed. So are the listed ones that leave, lest a
  // source be held without its parents; `sources` names all these (appended), tails first. The
  // blocks must be there to be taken.
  void Shift(BlockStore& store, int64_t begin, int64_t end, std::vector<kernels::BlockCopy>* copies,
             std::vector<int32_t>* sources);

  // Shares the blocks of `parent` that hold its first num_tokens. This one is empty.
  void ForkFrom(const BlockTable& parent, BlockStore& store, int32_t block_size,
                int64_t num_tokens);

  // Block i's content is also in `block`, which others hold or the cache has: this table goes on
  // with that one, and with its own part in a window where the other has none that is held.
  void Replace(BlockStore& store, int64_t i, int32_t block);

  // From the tail: a prefix is useful without its suffix. `in_flight`: see BlockStore::Drop.
  void Clear(BlockStore& store, bool in_flight);

 private:
  std::vector<int32_t> blocks_;
  std::vector<Run> windows_;
};

}  // namespace quire::engine
