#include "tests/engine/model/golden_logits.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace quire::testing {

GoldenLogits ReadGoldenLogits(const nlohmann::json& entry) {
  GoldenLogits golden{.ids = entry.at("ids"), .bound = entry.at("bound")};
  std::string bytes;
  EXPECT_TRUE(absl::Base64Unescape(entry.at("logits").get<std::string>(), &bytes));
  golden.logits.resize(bytes.size() / sizeof(float));
  std::memcpy(golden.logits.data(), bytes.data(), bytes.size());
  return golden;
}

void ExpectAgreement(std::string_view name, const GoldenLogits& golden, const Logits& logits) {
  ASSERT_EQ(logits.size(), golden.logits.size());
  double worst = 0.0, smallest_margin = std::numeric_limits<double>::infinity();
  int64_t compared = 0;
  const auto vocab = static_cast<int64_t>(golden.logits.size() / golden.ids.size());
  for (size_t row = 0; row < golden.ids.size(); ++row) {
    const float* want = golden.logits.data() + row * vocab;
    const float* got = logits.data() + row * vocab;
    for (int64_t i = 0; i < vocab; ++i) worst = std::max(worst, std::abs(double{want[i]} - got[i]));
    std::vector<float> sorted(want, want + vocab);
    std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), std::greater<>());
    const double margin = double{sorted[0]} - sorted[1];
    smallest_margin = std::min(smallest_margin, margin);
    if (margin <= 2 * golden.bound) continue;
    ++compared;
    EXPECT_EQ(std::max_element(got, got + vocab) - got, std::max_element(want, want + vocab) - want)
        << "position " << row;
  }
  EXPECT_LE(worst, golden.bound);
  EXPECT_GE(compared * 100, static_cast<int64_t>(golden.ids.size()) * 99);
  std::printf("%-14s worst %.2e bound %.2e positions %ld of %zu smallest margin %.2e\n",
              std::string(name).c_str(), worst, golden.bound, static_cast<long>(compared),
              golden.ids.size(), smallest_margin);
}

double RelativeError(const Logits& got, const Logits& want) {
  double errors = 0.0, squares = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = double{got[i]} - want[i];
    errors += error * error;
    squares += double{want[i]} * want[i];
  }
  return std::sqrt(errors / squares);
}

}  // namespace quire::testing
