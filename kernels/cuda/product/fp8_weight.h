#pragma once

// Weights in e4m3 as cuBLASLt multiplies them: codes [rows, cols], and scales in the form of
// GemmScales. On the host.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/device.h"
#include "kernels/quant/weight_view.h"

namespace quire::kernels::cuda {

// Returns the form of the scales with which the rows of `weight`, which must be valid, can be
// multiplied in e4m3. It is kRows if each row has one scale, and kBlocks if each block of 128 x 128
// has one. It is kNone for another type than kF8E4M3Scaled, for other scales, and if the number of
// rows is not a multiple of 16, or, with kBlocks, if that of rows or columns is not one of 128.
// Reads all scales.
GemmScales Fp8ScalesOf(const WeightView& weight);

// Returns how many rows share scales: 1 or 128.
constexpr int64_t RowsOfScales(GemmScales scales) {
  return scales == GemmScales::kBlocks ? kScaledGemmBlock : 1;
}
// Returns the bytes of the scales of RowsOfScales rows.
int64_t ScaleRowBytes(GemmScales scales, int64_t cols);

// Writes the codes of rows [first, first + count).
void CopyCodes(const WeightView& weight, int64_t first, int64_t count, std::byte* out);
// Writes rows [first, first + count) of the scales, each of ScaleRowBytes.
void CopyScales(const WeightView& weight, GemmScales scales, int64_t first, int64_t count,
                std::byte* out);

}  // namespace quire::kernels::cuda
