#include "engine/model/layers/mixture.h"

namespace quire::engine {

absl::Status RunMixture(kernels::Backend& backend, const Mixture& mixture,
                        const ModelConfig& config, kernels::TensorView normed,
                        kernels::TensorView hidden) {
  return backend.Moe({.out = hidden,
                      .input = normed,
                      .router = mixture.router.get(),
                      .up = mixture.up.get(),
                      .down = mixture.down.get(),
                      .residual = hidden,
                      .num_experts_per_token = config.num_experts_per_tok,
                      .softmax_over_chosen = config.norm_topk_prob,
                      .activation = config.activation});
}

}  // namespace quire::engine
