#pragma once

// Converts e4m3, the 8-bit floating-point format of KV caches (arXiv:2209.05433), to and from
// float32. The code of a number is a sign, 4 bits of exponent with a bias of 7, and 3 bits of
// mantissa. Numbers reach from 2^-9 to 448. There is no infinity, and 0x7F and 0xFF are NaN.
//
// Host and device share these functions, so that a CPU and a GPU store the same bits.

#include <bit>
#include <cstdint>

namespace quire::kernels {

inline constexpr float kLargestE4M3 = 448.0f;

constexpr float E4M3ToF32(uint8_t code) {
  const uint32_t sign = uint32_t{code & 0x80u} << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7ff00000u);
  // The bits of the code are those of a float32 that is 2^-120 times as large. Multiplication by
  // 2^120 is exact, for subnormal numbers too.
  const float scaled = std::bit_cast<float>(magnitude << 20) * 0x1p120f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

// Returns `value` / `scale` for F32ToE4M3. The quotient of a finite value may be too large for
// float32; the result is then finite too, so that it saturates.
constexpr float DividedForE4M3(float value, float scale) {
  if (!(value - value < 1.0f)) return value;  // is not finite
  const float quotient = value / scale;
  if (quotient > kLargestE4M3) return kLargestE4M3;
  return quotient < -kLargestE4M3 ? -kLargestE4M3 : quotient;
}

// Rounds to nearest even. Numbers beyond 448 become 448. An infinity becomes NaN, as a NaN does,
// so that the cache still shows that a model's numbers were not finite.
constexpr uint8_t F32ToE4M3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // All cases are computed, and one is selected: lanes of a GPU's warp would take each branch.
  const uint32_t odd = (magnitude >> 20) & 1;
  uint32_t code = (magnitude - (120u << 23) + 0x7ffffu + odd) >> 20;
  // A subnormal result. The last bit of a float in [2^14, 2^15) is worth 2^-9, as much as the last
  // bit of the result, so the addition of 2^14 rounds.
  const float sum = std::bit_cast<float>(magnitude) + 0x1p14f;
  const uint32_t subnormal = std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0x1p14f);
  code = magnitude < std::bit_cast<uint32_t>(0x1p-6f) ? subnormal : code;
  code = magnitude >= std::bit_cast<uint32_t>(kLargestE4M3) ? 0x7eu : code;
  code = magnitude >= 0x7f800000u ? 0x7fu : code;
  return static_cast<uint8_t>(sign | code);
}

}  // namespace quire::kernels
