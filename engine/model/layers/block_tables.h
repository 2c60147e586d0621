#pragma once

// The block tables of a step's sequences, in the backend's memory.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "engine/batch/model_input.h"
#include "engine/kv/kv_cache.h"
#include "kernels/backend.h"
#include "kernels/table_mirror.h"

namespace quire::engine {

// Has one table for each KV group, and in it a row for each sequence of a step. The tables stay
// from step to step. Between two decode steps, most rows do not change, and the others grow by one
// entry. So a step uploads only the entries that differ from those of the step before.
class BlockTables {
 public:
  // `num_groups` is the number of KV groups that have layers.
  static absl::StatusOr<BlockTables> Create(kernels::Backend& backend, int64_t num_groups,
                                            int64_t max_seqs, int64_t max_blocks,
                                            int32_t block_size);

  // Returns what Update must write for this step. The result is valid until the next call.
  // Attention reads no entry after the last block of a row's context, so such entries keep what
  // earlier steps left there.
  std::span<const kernels::TableChange> Changes(const ModelInput& input,
                                                std::span<const KvGroup> groups);
  // Enqueues the changes that Changes() returned last. `changes` is a copy of them in the backend's
  // memory. If this is not called, the next call of Changes() returns all entries.
  absl::Status Update(kernels::Backend& backend, const kernels::TensorView& changes);

  // Returns int32 [num_seqs, max_blocks] of a KV group that has layers.
  kernels::TensorView table(size_t group, int64_t num_seqs) const;
  // Returns the size of the most changes.
  int64_t max_changes_bytes() const { return mirror_.max_changes_bytes(); }

 private:
  int64_t max_seqs_ = 0, max_blocks_ = 0;
  int32_t block_size_ = 1;
  kernels::DeviceBuffer tables_;        // [num_groups, max_seqs, max_blocks]
  std::vector<int64_t> first_entries_;  // in tables_, by KV group
  kernels::TableMirror mirror_;         // of tables_
};

}  // namespace quire::engine
