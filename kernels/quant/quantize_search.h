#pragma once

// Shared parts of Quantize's searches for a block's scale.
//
// For given codes q the scale of least squared error is  sum(x q) / sum(q q),  which explains
// sum(x q)^2 / sum(q q)  of  sum(x x).  The error jumps wherever a code changes, so it has many
// local minima and no useful slope. A search therefore tries a grid of scales, rounds with each,
// and keeps the one whose codes explain the most.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/quant/float16.h"

namespace quire::kernels::quantize_internal {

// A smaller weight is nearer to zero than to the smallest number of any block.
constexpr float kNegligible = 0x1p-25f;

constexpr float kRounding = 4e-6f;  // relative error of values computed from sums

// Four weights at once. The compiler chooses vector instructions; on a machine without any, the
// additions have the same order and give the same bits.
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

// The codes nearest to `scaled`, as floats.
inline Lanes NearestCodes(Lanes scaled, CodeRange range) {
  const Lanes low = Lanes{} + range.low, high = Lanes{} + range.high;
  const Lanes above = scaled > low ? scaled : low;
  const Lanes within = above < high ? above : high;
  constexpr float kRounder = 0x1.8p23f;  // a sum with it has a last bit worth 1
  return (within + kRounder) - kRounder;
}

inline float Inverse(float step) { return step != 0.0f ? 1.0f / step : 0.0f; }

// The f16 for a scale, never infinite. It is the nearest one; where f16 is coarse, the next away
// from zero, since codes must reach the extreme weight, unless the scale equals an f16 up to the
// rounding of sums.
inline uint16_t StoredScale(float scale) {
  const float magnitude = std::abs(scale);
  uint16_t bits = std::min<uint16_t>(F32ToF16(magnitude), 0x7bff);
  if (magnitude < 0x1p-14f && F16ToF32(bits) < magnitude * (1.0f - kRounding)) ++bits;
  return static_cast<uint16_t>(bits | (scale < 0.0f ? 0x8000 : 0));
}

// The weight of the largest magnitude.
template <int N>
float Extreme(const float* x) {
  const auto [low, high] = std::minmax_element(x, x + N);
  return -*low > *high ? *low : *high;
}

// Sums over weights x and the codes q of  (x + offset) * inverse.
struct CodeSums {
  float q = 0.0f;
  float qq = 0.0f;
  float xq = 0.0f;

  float scale() const { return qq > 0.0f ? xq / qq : 0.0f; }  // of least squared error
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

// Squared error of x as  step * code - offset.
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

// Writes the codes of x as  step * code - offset,  each less range.low: unsigned.
template <int N>
void StoreCodes(const float* x, float offset, float step, CodeRange range, uint8_t* codes) {
  const float inverse = Inverse(step);
  for (int i = 0; i < N; i += kLanes) {
    const Lanes q = NearestCodes((Load(x + i) + offset) * inverse, range) - range.low;
    for (int lane = 0; lane < kLanes; ++lane) codes[i + lane] = static_cast<uint8_t>(q[lane]);
  }
}

}  // namespace quire::kernels::quantize_internal
