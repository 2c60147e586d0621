#pragma once

// How packed weights are multiplied. Plain C++. The numbers are estimates for an H200: no GPU has
// measured them (docs/evidence/gpu-predictions.md).

#include <algorithm>
#include <cstdint>

#include "base/math.h"
#include "kernels/cuda/product/packed_weight.h"

namespace quire::kernels::cuda {

// A sum has a part for each remainder of the number of a tile by this, and the parts are added in
// order.
inline constexpr int kPackedParts = 8;

// The most tokens for which a packed weight is read once (packed_batch_gemm.cuh).
inline constexpr int64_t kPackedBatch = 64;

// The blocks of PackedBatchGemmKernel have this number of rows.
inline constexpr int64_t kPackedBatchRows = 256;

// Returns how many of these blocks share their rows, each with other parts of the sums: a power of
// two, at most kPackedParts. As many as `num_sms` multiprocessors run at once, because a part is
// written and read.
constexpr int PackedBlocksPerRow(int64_t rows, int num_sms) {
  const int64_t row_blocks = base::CeilDiv(rows, kPackedBatchRows);
  int blocks = 1;
  while (blocks < kPackedParts && row_blocks * blocks * 2 <= num_sms) blocks *= 2;
  return blocks;
}

// Returns the most tokens by which a packed weight is multiplied as it is, kPackedBatch at a time.
// For more tokens it is expanded to 16 bits. Both ways are compared in the bytes that the memory
// reads in their time, for each weight of p bytes:
//
//   expanded  p + 2 + 2 at 90 % of the bandwidth: read, written, and read by the GEMM, whose
//             arithmetic takes no longer up to 200 tokens.
//   packed    for each batch the longer of two times, at an assumed 60 % of either's bound:
//             - The L2 cache passes on p bytes, 0.5 of activations (64 tokens of 2 bytes for 256
//               rows) and, if blocks share rows, the parts of the sums: 8 of 4 bytes, written and
//               read, for 64 tokens and each row. It has 5.5 TB/s where the memory has 4.3.
//             - A multiprocessor issues the 204 instructions of a tile of 1024 weights in 51 cycles
//               (Q4_K), and its tensor cores take as long. The memory reads 18.6 bytes for it in a
//               cycle, so 0.95 for each weight.
constexpr int64_t MostPackedTokens(WeightType type, int64_t rows, int64_t cols, int num_sms) {
  constexpr double kArithmetic = 0.95, kActivations = 0.5, kL2 = 5.5 / 4.3;
  const double bytes =
      static_cast<double>(PackedGroupBytes(type, cols)) / static_cast<double>(kGroupRows * cols);
  const double parts =
      PackedBlocksPerRow(rows, num_sms) == 1
          ? 0.0
          : static_cast<double>(kPackedParts * 4 * 2 * kPackedBatch) / static_cast<double>(cols);
  const double expanded = (bytes + 2.0 + 2.0) / 0.9;
  const double batch = std::max(kArithmetic, (bytes + kActivations + parts) / kL2) / 0.6;
  return std::max(int64_t{1}, static_cast<int64_t>(expanded / batch)) * kPackedBatch;
}

}  // namespace quire::kernels::cuda
