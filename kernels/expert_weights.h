#pragma once

#include <cstdint>

namespace quire::kernels {

// How the logits of a router become the weights of the chosen experts.
//   kSoftmaxOfChosen  softmax over the logits of the chosen experts (Mixtral, arXiv:2401.04088)
//   kSoftmaxOfAll     softmax over the logits of all experts (Qwen 3, arXiv:2505.09388)
//   kLogistic         1 / (1 + e^-logit) (Llama 4)
//   kNormedLogistic   the same, divided by the sum over the chosen experts (DeepSeek-V3,
//                     arXiv:2412.19437)
enum class ExpertWeights : uint8_t { kSoftmaxOfChosen, kSoftmaxOfAll, kLogistic, kNormedLogistic };

// Added to the sum of kNormedLogistic, as in DeepSeek-V3's published code, so that weights are 0
// and not NaN if the logistic values of all chosen experts round to 0.
inline constexpr float kLeastLogisticSum = 1e-20f;

}  // namespace quire::kernels
