#pragma once

// Floating-point types of kernels. A value holds only its bits. Kernels compute in float32.

#include <cstdint>

namespace quire::kernels::cuda {

struct Bf16 {
  uint16_t bits;
};

struct F16 {
  uint16_t bits;
};

// Only elements of KV caches have this type.
struct E4M3 {
  uint8_t bits;
};

}  // namespace quire::kernels::cuda
