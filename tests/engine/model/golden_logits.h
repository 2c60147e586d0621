#pragma once

// The logits that a reference gives for a prompt, and the check that a model's logits agree with
// them.

#include <cstdint>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace quire::testing {

using Logits = std::vector<float>;  // [num_tokens, vocab_size]

struct GoldenLogits {
  std::vector<int32_t> ids;
  Logits logits;
  // The largest allowed error of a logit. The script that made `logits` derived this bound.
  double bound = 0.0;
};

GoldenLogits ReadGoldenLogits(const nlohmann::json& entry);

// Expects that no logit is further off than the bound. Expects the same argmax at every position
// where the largest golden logit is above the second largest by more than twice the bound. Expects
// at least 99 % of the positions to be of this kind. Prints the numbers.
void ExpectAgreement(std::string_view name, const GoldenLogits& golden, const Logits& logits);

}  // namespace quire::testing
