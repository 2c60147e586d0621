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
  double bound = 0.0;  // on any logit, derived by the script that made them
};

GoldenLogits ReadGoldenLogits(const nlohmann::json& entry);

// No logit is further off than the bound; the argmax is the same at every position whose largest
// logit stands out by more than twice the bound, and nearly all do. Prints the numbers.
void ExpectAgreement(std::string_view name, const GoldenLogits& golden, const Logits& logits);

}  // namespace quire::testing
