#include "engine/model/layers/mixture.h"

namespace quire::engine {

absl::Status RunMixture(kernels::Backend& backend, const Mixture& mixture,
                        const FeedForwardSpec& spec, kernels::TensorView normed,
                        kernels::TensorView hidden) {
  return backend.Moe({.out = hidden,
                      .input = normed,
                      .router = mixture.router.get(),
                      .up = mixture.up.get(),
                      .down = mixture.down.get(),
                      .router_bias = mixture.router_bias.view,
                      .choice_bias = mixture.choice_bias.view,
                      .up_bias = mixture.up_bias.view,
                      .down_bias = mixture.down_bias.view,
                      .residual = hidden,
                      .num_experts_per_token = spec.experts.per_token,
                      .weights = spec.experts.weights,
                      .weights_scale_input = spec.experts.weights_scale_input,
                      .activation = spec.activation,
                      .activation_limit = static_cast<float>(spec.activation_limit)});
}

}  // namespace quire::engine
