#pragma once

// The pool and the tree of blocks, kept in step with each other and with the steps in flight.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/block_pool.h"
#include "engine/kv/prefix_cache.h"

namespace quire::engine {

// Who drops a block while a step in flight may still touch it does not free it: the block is
// quarantined, held by a handle until that step has completed. So is the source of a copy, until
// the step that copies it has. Not thread-safe; nothing is allocated per step after warm-up.
class BlockStore {
 public:
  BlockStore(int32_t num_blocks, int32_t block_size);

  const BlockPool& pool() const { return pool_; }
  PrefixCache& cache() { return cache_; }
  const PrefixCache& cache() const { return cache_; }

  // Blocks that Take() has: free ones and cached ones.
  int64_t num_available() const { return int64_t{pool_.num_free()} + pool_.num_cached(); }
  int64_t num_quarantined() const { return pool_.num_held_by_handles_only(); }
  int64_t num_evictions() const { return num_evictions_; }

  // A block for one table: a free one, or else an evicted one; -1 when there is none.
  int32_t Take();
  // One more table holds `block`, which is not free.
  void Hold(int32_t block);
  // One table fewer. `in_flight`: a step in flight may touch it through that table.
  void Drop(int32_t block, bool in_flight = true);

  // `block` is read by a copy of the step being built, and kept until that step has completed.
  void HoldSource(int32_t block);
  // The same, for a table's own hold: the table goes on with the copy.
  void TurnIntoSource(int32_t block);
  // That copy will not run.
  void DropSource(int32_t block);

  // See PrefixCache.
  void List(int32_t block, RootId root, int32_t parent, std::span<const int32_t> tokens);
  void Unlist(int32_t block);

  // Steps count up. One may be built at a time, while one more is in flight.
  void BeginStep(int64_t step);
  void EndStep(bool submitted);
  void CompleteStep(int64_t step);
  bool building() const { return building_; }
  int64_t step() const { return step_; }  // begun last

  void CheckInvariants() const;
  // How many handles hold each block, for the one who counts all.
  std::vector<int32_t> CountHandles() const;

 private:
  void DropHandle(int32_t block);
  std::vector<int32_t>& HoldsOf(int64_t step) { return holds_[step & 1]; }

  BlockPool pool_;
  PrefixCache cache_;
  bool building_ = false;
  int64_t step_ = 0;
  int64_t submitted_ = 0;  // the last one
  int64_t completed_ = 0;  // the last one; those behind it, up to submitted_, are in flight
  std::array<std::vector<int32_t>, 2> holds_;  // handles to drop when the step has completed
  int64_t num_evictions_ = 0;
};

}  // namespace quire::engine
