#pragma once

// Shared parts of Quantize's searches for a block's scale.
//
// For given codes q, the scale of least squared error is  sum(x q) / sum(q q).  With this scale the
// codes explain  sum(x q)^2 / sum(q q)  of the total  sum(x x).  The error jumps wherever a code
// changes, so it has many local minima and no useful slope. A search therefore tries a grid of
// scales, rounds the weights with each scale, and keeps the scale whose codes explain the most.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/quant/float16.h"

namespace quire::kernels::quantize_internal {

// A weight below this magnitude is nearer to zero than to the smallest number that a block can
// hold.
constexpr float kNegligible = 0x1p-25f;

constexpr float kRounding = 4e-6f;  // relative error of values computed from sums

// Four weights that are processed together. The compiler chooses vector instructions. Without them,
// the additions have the same order and give the same bits.
constexpr int kLanes = 4;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

inline Lanes Load(const float* x) {
  Lanes lanes;
  std::memcpy(&lanes, x, sizeof(lanes));
  return lanes;
}
inline float Total(Lanes x) { return (x[0] + x[2]) + (x[1] + x[3]); }

struct CodeRange {
  float low;
  float high;
};

// Returns the codes nearest to `scaled`, as floats.
inline Lanes NearestCodes(Lanes scaled, CodeRange range) {
  const Lanes low = Lanes{} + range.low, high = Lanes{} + range.high;
  const Lanes above = scaled > low ? scaled : low;
  const Lanes within = above < high ? above : high;
  // The last bit of a float near kRounder is worth 1, so the addition rounds to a whole number.
  constexpr float kRounder = 0x1.8p23f;
  return (within + kRounder) - kRounder;
}

inline float Inverse(float step) { return step != 0.0f ? 1.0f / step : 0.0f; }

// Returns the f16 to store for `scale`: the nearest f16, but never infinity. Below the normal
// numbers, f16 is coarse. If the nearest f16 there is smaller in magnitude than `scale`, by more
// than the rounding error of sums, the result is the f16 of the next larger magnitude. With the
// smaller f16, the codes could not reach the extreme weight.
inline uint16_t StoredScale(float scale) {
  const float magnitude = std::abs(scale);
  uint16_t bits = std::min<uint16_t>(F32ToF16(magnitude), 0x7bff);
  if (magnitude < 0x1p-14f && F16ToF32(bits) < magnitude * (1.0f - kRounding)) ++bits;
  return static_cast<uint16_t>(bits | (scale < 0.0f ? 0x8000 : 0));
}

// Returns the weight with the largest magnitude.
template <int N>
float Extreme(const float* x) {
  const auto [low, high] = std::minmax_element(x, x + N);
  return -*low > *high ? *low : *high;
}

// Sums over the weights x and their codes q. A weight has the code nearest to
// (x + offset) * inverse.
struct CodeSums {
  float q = 0.0f;
  float qq = 0.0f;
  float xq = 0.0f;

  float scale() const { return qq > 0.0f ? xq / qq : 0.0f; }  // the scale of least squared error
  float explained() const { return scale() * xq; }
};
template <int N>
CodeSums SumCodes(const float* x, float offset, float inverse, CodeRange range) {
  Lanes q_sum{}, qq_sum{}, xq_sum{};
  for (int i = 0; i < N; i += kLanes) {
    const Lanes weights = Load(x + i);
    const Lanes q = NearestCodes((weights + offset) * inverse, range);
    q_sum += q;
    qq_sum += q * q;
    xq_sum += weights * q;
  }
  return {Total(q_sum), Total(qq_sum), Total(xq_sum)};
}

// Returns the squared error of x when it is represented as  step * code - offset.
template <int N>
float SquaredError(const float* x, float offset, float step, CodeRange range) {
  const float inverse = Inverse(step);
  Lanes sum{};
  for (int i = 0; i < N; i += kLanes) {
    const Lanes shifted = Load(x + i) + offset;
    const Lanes error = shifted - NearestCodes(shifted * inverse, range) * step;
    sum += error * error;
  }
  return Total(sum);
}

// Writes the codes that represent x as  step * code - offset.  A code is stored as code -
// range.low, which is unsigned.
template <int N>
void StoreCodes(const float* x, float offset, float step, CodeRange range, uint8_t* codes) {
  const float inverse = Inverse(step);
  for (int i = 0; i < N; i += kLanes) {
    const Lanes q = NearestCodes((Load(x + i) + offset) * inverse, range) - range.low;
    for (int lane = 0; lane < kLanes; ++lane) codes[i + lane] = static_cast<uint8_t>(q[lane]);
  }
}

}  // namespace quire::kernels::quantize_internal
