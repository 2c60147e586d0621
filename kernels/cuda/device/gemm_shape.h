#pragma once

// GemmShape is the key by which the algorithm of a matrix product is chosen. The number of tokens m
// differs from step to step. All m in one bucket share an algorithm, so the caller rounds m up to
// the bucket (kernels/row_bucket.h). This keeps the number of algorithms small.

#include <cstdint>

#include "kernels/cuda/device/device.h"

namespace quire::kernels::cuda {

// With scales of blocks, the number of tokens of a product is a multiple of it. cuBLASLt then reads
// the scales of 128 columns in whole vectors of 16 bytes.
inline constexpr int64_t kScaledGemmTokens = 4;

// Returns the alignment on which an algorithm may rely. It is 256 bytes if the address is a
// multiple of 256, as whole allocations are. Otherwise it is the largest power of two that divides
// the address, at most the 16 bytes that vectors and TMA need.
uint32_t AlignmentOf(const void* data);

struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldd = 0;
  uint32_t a_alignment = 0, b_alignment = 0, d_alignment = 0;  // bytes
  DType type = DType::kBF16, output_type = DType::kBF16;
  bool accumulate = false;
  GemmScales scales = GemmScales::kNone;

  auto operator<=>(const GemmShape&) const = default;
};

// Returns the shape of `args`. `m` is not rounded to a bucket.
GemmShape ShapeOf(const GemmArgs& args);

}  // namespace quire::kernels::cuda
