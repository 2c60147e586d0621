#pragma once

// Penalties on tokens that occurred before.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/ops/sample.h"

namespace quire::kernels::sampling {

// Applies three penalties to the logit of an id that occurs in the window, `in_output` times in its
// output, in this order (as in vLLM):
//   repetition  once for an id of the prompt or the output: logit > 0 ? logit / r : logit * r
//               (CTRL, arXiv:1909.05858; HF transformers' RepetitionPenaltyLogitsProcessor)
//   frequency   logit -= f * occurrences in the output
//   presence    logit -= p when the id occurs in the output
// `Params` has the members of DrawParams.
template <typename Params>
constexpr void Penalise(const Params& params, int32_t in_output, float& logit) {
  float x = logit;
  if (params.repetition_penalty != 1.0f) {
    x = x > 0.0f ? x / params.repetition_penalty : x * params.repetition_penalty;
    x = std::min(x, std::numeric_limits<float>::max());  // a tiny penalty overflows
  }
  if (in_output > 0) {
    x -= params.frequency_penalty * static_cast<float>(in_output);
    x -= params.presence_penalty;
  }
  logit = x;
}

// Counts the ids in the window and penalises each of them. The window is the last penalty_last_n
// tokens of prompt and output together. If penalty_last_n is -1, the window is all tokens.
class Penalties {
 public:
  explicit Penalties(int32_t vocab_size) : occurrences_(vocab_size) {}

  // Applies the penalties to `logits`. `tokens` holds the prompt, which has `prompt_len` tokens,
  // and then the output. Ids outside of `logits` are ignored. Costs O(window).
  void Apply(const DrawParams& params, std::span<const int32_t> tokens, int64_t prompt_len,
             std::span<float> logits);

 private:
  struct Count {
    int32_t in_window = 0;
    int32_t in_output = 0;
  };
  std::vector<Count> occurrences_;  // by id; all zero between calls
  std::vector<int32_t> seen_;       // ids whose count is not zero
};

}  // namespace quire::kernels::sampling
