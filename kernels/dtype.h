#pragma once

// Element types of activations, caches and index vectors.

#include <cstdint>
#include <string_view>

namespace quire::kernels {

// kF8E4M3 has 4 bits of exponent and 3 of mantissa, no infinity, and a largest number of 448
// (arXiv:2209.05433). Only KV caches use it.
enum class DType : uint8_t { kF32, kF16, kBF16, kF8E4M3, kI32, kI64 };

constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF16:
      return 2;
    case DType::kBF16:
      return 2;
    case DType::kF8E4M3:
      return 1;
    case DType::kI32:
      return 4;
    case DType::kI64:
      return 8;
  }
  return 0;
}

constexpr std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kF8E4M3:
      return "fp8_e4m3";
    case DType::kI32:
      return "int32";
    case DType::kI64:
      return "int64";
  }
  return "?";
}

}  // namespace quire::kernels
