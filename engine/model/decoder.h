#pragma once

// The Llama family: Llama 2 and 3, SmolLM2, Mistral without a window (arXiv:2302.13971,
// 2307.09288). Pre-norm blocks of RMSNorm, rotary attention with grouped KV heads (GQA,
// arXiv:2305.13245), SwiGLU.

#include <memory>

#include "engine/model/model.h"
#include "engine/weights/weight_map.h"
#include "kernels/backend.h"

namespace quire::engine {

// Which file family named the tensors.
enum class TensorNaming { kGguf, kHuggingFace };

// Prepares the weights on `backend`, which must outlive the model; `weights` only if the backend
// maps them. NotFound or InvalidArgument names the tensor that is missing or has another shape.
absl::StatusOr<std::unique_ptr<Model>> CreateLlama(const ModelConfig& config,
                                                   const WeightMap& weights, TensorNaming naming,
                                                   kernels::Backend& backend,
                                                   const StepLimits& limits);

}  // namespace quire::engine
