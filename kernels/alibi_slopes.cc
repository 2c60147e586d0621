#include "kernels/alibi_slopes.h"

#include <bit>

#include "base/reproducible_math.h"

namespace quire::kernels {

std::vector<float> AlibiSlopes(int32_t num_heads, double bias_max) {
  std::vector<float> slopes;
  if (num_heads <= 0) return slopes;
  const auto ladder = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(num_heads)));
  for (int32_t h = 0; h < num_heads; ++h) {
    // `ladder` is n in the formula of alibi_slopes.h. In both cases of the formula, the slope is
    // 2^(-bias_max * rung / (2 * ladder)).
    const int32_t rung = h < ladder ? 2 * (h + 1) : 2 * (h - ladder) + 1;
    slopes.push_back(static_cast<float>(base::Pow(2.0, -bias_max * rung / (2.0 * ladder))));
  }
  return slopes;
}

}  // namespace quire::kernels
