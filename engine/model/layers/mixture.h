#pragma once

// A layer's mixture of experts, which replaces its feed-forward network.

#include <memory>

#include "absl/status/status.h"

#include "engine/model/layers/parameter_loader.h"
#include "engine/model/model_config.h"
#include "kernels/backend.h"
#include "kernels/prepared_weight.h"
#include "kernels/tensor_view.h"

namespace quire::engine {

struct Mixture {
  std::unique_ptr<kernels::PreparedWeight> router, up, down;  // in the layout of MoeArgs
  Parameter router_bias, choice_bias, up_bias, down_bias;     // empty views without biases
};

// Adds the experts' output for `normed` to `hidden`, [num_tokens, hidden_size].
absl::Status RunMixture(kernels::Backend& backend, const Mixture& mixture,
                        const FeedForwardSpec& spec, kernels::TensorView normed,
                        kernels::TensorView hidden);

}  // namespace quire::engine
