#pragma once

// What the choice of a GEMM's algorithm depends on. Numbers of tokens differ from step to step:
// they share one choice by buckets, so that a run makes few, and soon none.

#include <cstdint>

#include "kernels/cuda/device.h"

namespace quire::kernels::cuda {

// `m` or the next of 1 to 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, ...: four for each power of two.
int64_t RowBucket(int64_t m);

// What an algorithm may rely on: 256 bytes, as whole allocations have it, 16, as vectors and TMA
// want it, or else the largest power of two that divides the address.
uint32_t AlignmentOf(const void* data);

struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldd = 0;
  uint32_t a_alignment = 0, b_alignment = 0, d_alignment = 0;  // bytes
  DType type = DType::kBF16, output_type = DType::kBF16;
  bool accumulate = false;

  auto operator<=>(const GemmShape&) const = default;
};

// `m` as it is.
GemmShape ShapeOf(const GemmArgs& args);

}  // namespace quire::kernels::cuda
