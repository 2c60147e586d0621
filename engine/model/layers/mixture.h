#pragma once

// A layer's mixture of experts, in the place of its feed-forward network.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "engine/model/layers/parameter_loader.h"
#include "engine/model/model_config.h"
#include "engine/model/tensor_names.h"
#include "kernels/backend.h"

namespace quire::engine {

struct Mixture {
  std::unique_ptr<kernels::PreparedWeight> router, up, down;  // as MoeArgs has them
};

// From the tensors that begin with `prefix`, in whichever of the ways of names.mixtures they are.
absl::StatusOr<Mixture> LoadMixture(ParameterLoader& loader, const TensorNames& names,
                                    const std::string& prefix, const ModelConfig& config);

// Adds to `hidden`, [num_tokens, hidden_size], what the experts make of `normed`.
absl::Status RunMixture(kernels::Backend& backend, const Mixture& mixture,
                        const ModelConfig& config, kernels::TensorView normed,
                        kernels::TensorView hidden);

}  // namespace quire::engine
