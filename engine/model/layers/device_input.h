#pragma once

// A step's index vectors in device memory.

#include <array>
#include <map>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "engine/batch/model_input.h"
#include "engine/kv/kv_cache.h"
#include "engine/model/model.h"
#include "kernels/backend.h"

namespace quire::engine {

// Holds the index vectors of one step. Create allocates the device memory for the largest step, so
// Upload need not allocate any for them.
class DeviceInput {
 public:
  static absl::StatusOr<DeviceInput> Create(kernels::Backend& backend, const ModelConfig& config,
                                            const StepLimits& limits);

  // Enqueues one copy of the index vectors of a step to the device. Has the backend plan the
  // attention of the step, once for each plan key that layers have. When a step is uploaded, only
  // the step before it may still be running.
  absl::Status Upload(kernels::Backend& backend, const ModelInput& input,
                      std::span<const KvGroup> groups);
  // True if the last upload is a decode step on a backend that can record and replay launches. A
  // model's ops have equal launches in all steps with equal launch_key().
  bool can_replay() const { return !launch_key_.empty(); }
  const std::vector<int64_t>& launch_key() const { return launch_key_; }

  // Views of the last upload.
  kernels::TensorView token_ids() const { return token_ids_; }
  kernels::TensorView token_sources() const { return token_sources_; }
  kernels::TensorView positions() const { return positions_; }
  kernels::TensorView query_starts() const { return query_starts_; }
  kernels::TensorView context_lens() const { return context_lens_; }
  kernels::TensorView logit_rows() const { return logit_rows_; }
  // The next two functions need a KV group that has layers.
  kernels::TensorView slot_mapping(size_t group) const { return groups_[group].slot_mapping; }
  kernels::TensorView block_table(size_t group) const { return groups_[group].block_table; }
  const kernels::AttentionPlan* plan(const kernels::AttentionPlanKey& key) const {
    return plans_.at(key);
  }

 private:
  struct Group {
    kernels::TensorView slot_mapping, block_table;
  };
  int64_t capacity_bytes_ = 0;
  int64_t max_blocks_ = 0;  // of one sequence
  bool records_ = false;    // see BackendInfo
  kernels::DeviceBuffer buffer_;
  // The host memory from which the last two steps are copied. Empty if the host can access buffer_.
  std::array<kernels::DeviceBuffer, 2> staging_;
  size_t last_staging_ = 0;
  kernels::TensorView token_ids_, token_sources_, positions_, query_starts_, context_lens_;
  kernels::TensorView logit_rows_;
  std::vector<Group> groups_;
  std::vector<int32_t> table_;  // kept for its capacity
  // Create makes the keys.
  std::map<kernels::AttentionPlanKey, const kernels::AttentionPlan*> plans_;
  std::vector<int64_t> launch_key_;  // empty: the step cannot be replayed
};

}  // namespace quire::engine
