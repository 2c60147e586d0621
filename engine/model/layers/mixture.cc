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
                      .residual = hidden,
                      .num_experts_per_token = spec.experts.per_token,
                      .softmax_over_chosen = spec.experts.weights_sum_to_1,
                      .activation = spec.activation});
}

}  // namespace quire::engine
