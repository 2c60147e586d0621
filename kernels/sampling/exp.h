#pragma once

// Computes e^x for the weights of sampling. The polynomial uses plain float32 operations only, so
// that a loop over it vectorises, and every ISA path and compiler gives the same bits. (The build
// forbids contraction into fused multiply-adds.) The functions are constexpr, so nvcc compiles them
// for a GPU unchanged; nvcc needs -fmad=false.

#include <bit>
#include <cstdint>

namespace quire::kernels::sampling {

// Returns e^x for x <= 0, within 2 units in the last place. Returns 0 for NaN and for x <= -87,
// where e^x is close to the smallest normal float32. Uses Cody-Waite reduction and the minimax
// polynomial of Cephes' expf.
__attribute__((always_inline)) constexpr float ExpOfNonPositive(float x) {
  const float clamped = x > -87.0f ? x : -87.0f;
  // Adding and subtracting 1.5 * 2^23 rounds to an integer.
  const float shifted = clamped * 1.44269504088896341f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  float r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float y = p * (r * r) + r + 1.0f;
  const int32_t exponent = (std::bit_cast<int32_t>(shifted) - 0x4B400000 + 127) << 23;
  const float e = y * std::bit_cast<float>(exponent);
  return x > -87.0f ? e : 0.0f;
}

// A weight is rounded to a multiple of 2^-35. Float64 sums of up to 2^18 weights, each at most 1,
// are then exact, so a sum is the same in any order. In these units every weight is an integer.
inline constexpr double kWeightUnits = 34359738368.0;  // units in 1
inline constexpr double kWeightRounder = 131072.0;  // 2^17, whose unit in the last place is 2^-35

__attribute__((always_inline)) constexpr double RoundWeight(float exponential) {
  return (static_cast<double>(exponential) + kWeightRounder) - kWeightRounder;
}

// Rounds a weight times a depth (typical_p.cc) to a multiple of 2^-35, so that sums of up to 2^18
// such products are exact. A product is in [-25, 0].
constexpr double RoundWeightedDepth(double product) { return (product + 196608.0) - 196608.0; }

}  // namespace quire::kernels::sampling
