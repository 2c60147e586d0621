#pragma once

// Penalties on tokens that occurred before.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/sample.h"

namespace quire::kernels::sampling {

// Applies three penalties to each id that occurs in the window, in this order (as in vLLM):
//   repetition  once for an id of the prompt or the output: logit > 0 ? logit / r : logit * r
//               (CTRL, arXiv:1909.05858; HF transformers' RepetitionPenaltyLogitsProcessor)
//   frequency   logit -= f * occurrences in the output
//   presence    logit -= p when the id occurs in the output
// The window is the last penalty_last_n tokens of prompt and output together. If penalty_last_n is
// -1, the window is all tokens.
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
