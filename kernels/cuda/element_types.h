#pragma once

// 16-bit floating-point numbers as kernels hold them: bits and a type, arithmetic in float32.

#include <cstdint>

namespace quire::kernels::cuda {

struct Bf16 {
  uint16_t bits;
};

struct F16 {
  uint16_t bits;
};

}  // namespace quire::kernels::cuda
