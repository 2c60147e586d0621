#pragma once

// Makes random rows of logits for tests. Some rows are like those of models, and some are harder
// cases.

#include <cstdint>
#include <limits>
#include <random>
#include <rapidcheck.h>
#include <vector>

namespace quire::kernels::sampling {

// Returns `size` normally distributed logits. `spread` is the standard deviation, which may be 0.
inline std::vector<float> NormalLogits(int64_t size, float spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> logits(size);
  for (float& logit : logits) logit = spread * normal(random);
  return logits;
}

// Returns flat or peaked rows, sometimes with ties, -infinity or NaN. At least one logit is finite.
inline rc::Gen<std::vector<float>> AnyLogits(int max_size) {
  return rc::gen::exec([max_size] {
    const int size = *rc::gen::inRange(1, max_size + 1);
    const auto seed = *rc::gen::arbitrary<uint32_t>();
    const float spread = *rc::gen::element(0.0f, 0.01f, 1.0f, 3.0f, 10.0f);
    std::vector<float> logits = NormalLogits(size, spread, seed);
    std::mt19937 random(seed + 1);
    if (*rc::gen::arbitrary<bool>()) {  // ties
      for (float& logit : logits) logit = std::round(logit * 4.0f) / 4.0f;
    }
    if (*rc::gen::arbitrary<bool>()) {
      for (float& logit : logits) {
        if (random() % 4 == 0) logit = -std::numeric_limits<float>::infinity();
        if (random() % 64 == 0) logit = std::numeric_limits<float>::quiet_NaN();
      }
      logits[random() % logits.size()] = 0.5f;
    }
    return logits;
  });
}

}  // namespace quire::kernels::sampling
