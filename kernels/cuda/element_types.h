#pragma once

// 16-bit floating-point types of kernels. A value holds only its bits. Kernels compute in float32.

#include <cstdint>

namespace quire::kernels::cuda {

struct Bf16 {
  uint16_t bits;
};

struct F16 {
  uint16_t bits;
};

}  // namespace quire::kernels::cuda
