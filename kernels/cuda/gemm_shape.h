#pragma once

// The key by which a GEMM's algorithm is chosen. Numbers of tokens differ from step to step; those
// of one bucket share a choice, so that a run makes few choices, and soon none.

#include <cstdint>

#include "kernels/cuda/device.h"

namespace quire::kernels::cuda {

// Rounds `m` up to 1 .. 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, ...: four buckets for each power of
// two.
int64_t RowBucket(int64_t m);

// The alignment on which an algorithm may rely: 256 bytes, as of whole allocations; 16, as needed
// by vectors and TMA; or else the largest power of two that divides the address.
uint32_t AlignmentOf(const void* data);

struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldd = 0;
  uint32_t a_alignment = 0, b_alignment = 0, d_alignment = 0;  // bytes
  DType type = DType::kBF16, output_type = DType::kBF16;
  bool accumulate = false;

  auto operator<=>(const GemmShape&) const = default;
};

// The shape of `args`, with `m` not rounded.
GemmShape ShapeOf(const GemmArgs& args);

}  // namespace quire::kernels::cuda
