#pragma once

// The choices that an engine makes from its config, its model and its backend before it loads
// weights.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "engine/model/model.h"
#include "engine/model/model_config.h"
#include "engine/request/engine_info.h"
#include "kernels/backend.h"
#include "kernels/dtype.h"

namespace quire::engine {

// All errors are InvalidArgument, and say what the option wants and got.

// Returns the dtype of activations on a device. With "auto", models whose weights are neither F32
// nor F16 get bf16, because values beyond the range of f16 have been seen in such models. The CPU
// computes in f32 whatever this returns.
absl::StatusOr<kernels::DType> ChooseActivationDtype(const EngineConfig& config,
                                                     const ModelConfig& model);
absl::StatusOr<kernels::DType> ChooseKvDtype(const std::string& name, const ModelConfig& config,
                                             const kernels::Backend& backend);
// Sets all limits but max_draft_tokens.
absl::StatusOr<StepLimits> ChooseLimits(const EngineConfig& config, const ModelConfig& model,
                                        const kernels::BackendInfo& backend);
absl::StatusOr<int32_t> ChooseMaxDraftTokens(int32_t max_draft_tokens, int32_t pipeline_depth);

}  // namespace quire::engine
