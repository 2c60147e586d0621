#pragma once

// Logits of a reference implementation for a prompt, and a check that a model's logits agree with
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

// Expects that no logit differs from the golden one by more than the bound. A position is decided
// if its largest golden logit exceeds the second largest by more than twice the bound. Expects the
// same argmax at decided positions, and 99 % or more decided positions. Prints the largest error,
// the bound, the number of decided positions, and the smallest margin.
void ExpectAgreement(std::string_view name, const GoldenLogits& golden, const Logits& logits);

// Returns the root mean square of the differences, relative to that of `want`.
double RelativeError(const Logits& got, const Logits& want);

}  // namespace quire::testing
