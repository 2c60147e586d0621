#pragma once

// A step's index vectors in device memory.

#include <array>
#include <map>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "engine/batch/model_input.h"
#include "engine/kv/kv_cache.h"
#include "engine/model/decode_bucket.h"
#include "engine/model/layers/block_tables.h"
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
  //
  // If can_replay(), the step has been padded to a DecodeBucket. A padding sequence has one token
  // at position 0, which sees itself alone. It writes no K and V, and nothing reads its results.
  absl::Status Upload(kernels::Backend& backend, const ModelInput& input, const KvCache& cache);
  // True if the last upload is a decode step on a backend that can record and replay launches. A
  // model's ops have equal launches in all steps with equal launch_key().
  bool can_replay() const { return !launch_key_.empty(); }
  const std::vector<int64_t>& launch_key() const { return launch_key_; }

  // The sizes and views of the last upload. They include the padding.
  int64_t num_tokens() const { return token_ids_.dim(0); }
  int64_t num_logit_rows() const { return logit_rows_.dim(0); }
  kernels::TensorView token_ids() const { return token_ids_; }
  kernels::TensorView token_sources() const { return token_sources_; }  // of 0 tokens: no sources
  kernels::TensorView positions() const { return positions_; }
  kernels::TensorView query_starts() const { return query_starts_; }
  kernels::TensorView context_lens() const { return context_lens_; }
  kernels::TensorView logit_rows() const { return logit_rows_; }
  // The next two functions need a KV group that has layers.
  kernels::TensorView slot_mapping(size_t group) const { return slot_mappings_[group]; }
  kernels::TensorView block_table(size_t group) const {
    return tables_.table(group, context_lens_.dim(0));
  }
  const kernels::AttentionPlan* plan(const kernels::AttentionPlanKey& key) const {
    return plans_.at(key);
  }

 private:
  // Writes the vectors of `input` but its block tables into padded_, followed by the padding.
  void Pad(const ModelInput& input, int64_t num_seqs);
  // Places the vectors of `input`, `changes` of the block tables and those of the sampler one after
  // another in the host memory at `host`, and sets the views to the same places in buffer_.
  void Place(const ModelInput& input, std::span<const KvGroup> groups,
             std::span<const kernels::TableChange> changes,
             std::span<const kernels::TableChange> sampler_changes, char* host);

  int64_t capacity_bytes_ = 0, placed_bytes_ = 0;
  int64_t max_tokens_ = 0, max_seqs_ = 0, max_context_len_ = 0;
  bool records_ = false;  // see BackendInfo
  BlockTables tables_;
  kernels::DeviceBuffer buffer_;
  // The host memory from which the last two steps are copied. Empty if the host can access buffer_.
  std::array<kernels::DeviceBuffer, 2> staging_;
  size_t last_staging_ = 0;
  ModelInput padded_;  // kept for its capacity
  kernels::TensorView token_ids_, token_sources_, positions_, query_starts_, context_lens_;
  kernels::TensorView logit_rows_, table_changes_, sampler_changes_;
  std::vector<kernels::TensorView> slot_mappings_;  // by KV group
  // Create makes the keys.
  std::map<kernels::AttentionPlanKey, const kernels::AttentionPlan*> plans_;
  std::vector<int64_t> launch_key_;  // empty: the step cannot be replayed
};

}  // namespace quire::engine
