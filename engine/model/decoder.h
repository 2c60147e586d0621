#pragma once

// The decoder-only models that ModelConfig describes: layers of attention (grouped KV heads,
// arXiv:2305.13245) and a feed-forward network, each preceded by a norm and added to the residual.

#include <memory>

#include "engine/model/model.h"
#include "engine/model/tensor_names.h"
#include "files/weight_map.h"
#include "kernels/backend.h"
#include "kernels/communicator.h"

namespace quire::engine {

// Creates a decoder and prepares its weights on `backend`, which must outlive the model. `weights`
// must outlive the model only if the backend computes on the mapped file. Returns NotFound or
// InvalidArgument, naming the tensor, if a tensor is missing or has another shape.
//
// With a communicator, which must outlive the model, the decoder is one rank's part (shard.h), and
// Model::config() describes this part. All ranks must then run the same steps.
absl::StatusOr<std::unique_ptr<Model>> CreateDecoder(const ModelConfig& config,
                                                     const files::WeightMap& weights,
                                                     const TensorNames& names,
                                                     kernels::Backend& backend,
                                                     const StepLimits& limits,
                                                     kernels::Communicator* communicator = nullptr);

}  // namespace quire::engine
