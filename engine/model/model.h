#pragma once

// A model computes logits from one step's tokens.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "engine/batch/model_input.h"
#include "engine/kv/kv_cache.h"
#include "engine/model/model_config.h"
#include "kernels/tensor_view.h"

namespace quire::engine {

// Returns the shape of the K and V of each layer, and their scales.
std::vector<KvLayerShape> KvLayerShapes(const ModelConfig& config);

// The sizes of the largest step for which a model must be prepared. A model allocates its buffers
// once, when it is loaded.
struct StepLimits {
  int64_t max_tokens = 0;  // max_num_batched_tokens
  int64_t max_seqs = 0;    // max_num_seqs
  int64_t max_logit_rows = 0;
  int64_t max_model_len = 0;  // positions, in tokens
  int32_t block_size = 0;
  int32_t max_draft_tokens = 0;  // of one sequence in one step
  int32_t pipeline_depth = 0;    // see BackendInfo
  // A device runs steps of every size before the first request comes.
  bool warms_up_every_size = false;
};

// Used on the step thread only.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  // Returns the bytes of the prepared weights. A weight that stays mapped counts with the bytes
  // that it has in the file.
  virtual int64_t weight_bytes() const = 0;
  // Returns the bytes that a step of the largest size uses in addition to the weights and the
  // cache.
  virtual int64_t step_bytes() const = 0;
  virtual int64_t num_parameters() const = 0;

  // Enqueues one step: writes K and V of the tokens into `cache`, and reads the context from
  // `cache`. Returns the logits, f32 [num_logit_rows, vocab_size] in the backend's memory. The next
  // step overwrites them. `input` is not needed after the call. When a step is enqueued, only the
  // step before it may still be running. All calls must pass the same cache and an input.drawn in
  // the same memory, because a recorded step is replayed with the addresses of both.
  virtual absl::StatusOr<kernels::TensorView> Forward(const ModelInput& input, KvCache& cache) = 0;
};

}  // namespace quire::engine
