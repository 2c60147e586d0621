#pragma once

// Inputs whose sums are exact in float32, in any order of addition.

#include <cstdint>
#include <vector>

#include "kernels/cuda/device/element_types.h"
#include "kernels/quant/float16.h"

namespace quire::testing {

// Returns `count` pseudo-random integers from -4 to 4.
template <typename T>
std::vector<T> SmallIntegers(int64_t count, uint32_t seed) {
  std::vector<T> values(static_cast<size_t>(count));
  uint32_t state = seed;
  for (T& value : values) {
    state = state * 1664525u + 1013904223u;
    const auto number = static_cast<float>(static_cast<int>(state >> 16) % 9 - 4);
    if constexpr (std::is_same_v<T, kernels::cuda::Bf16>) {
      value.bits = kernels::F32ToBf16(number);
    } else {
      value.bits = kernels::F32ToF16(number);
    }
  }
  return values;
}

// Return the value of a number on the host, where the kernels' ToFloat is not available.
inline float ValueOf(kernels::cuda::Bf16 number) { return kernels::Bf16ToF32(number.bits); }
inline float ValueOf(kernels::cuda::F16 number) { return kernels::F16ToF32(number.bits); }

}  // namespace quire::testing
