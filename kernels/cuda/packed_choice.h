#pragma once

// How packed weights are multiplied. Plain C++. The numbers are estimates for an H200: no GPU has
// measured them (docs/evidence/gpu-predictions.md).

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/packed_weight.h"

namespace quire::kernels::cuda {

// The most tokens for which a packed weight is read once (packed_batch_gemm.cuh).
inline constexpr int64_t kPackedBatch = 64;

// Returns the most tokens by which a packed weight of `type` is multiplied as it is, kPackedBatch
// at a time. For more tokens the weight is expanded to 16 bits. Both ways are compared in bytes
// that the memory reads in the time of a weight, if a weight of `type` has p bytes.
//
//   expanded  p + 2 + 2 bytes at 90 % of the bandwidth: read, written, and read by the GEMM, whose
//             arithmetic takes no longer up to 200 tokens.
//   packed    for each batch the longer of two times, at an assumed 60 % of either's bound:
//             - the L2 cache passes on p bytes and 0.5 of activations (64 tokens of 2 bytes for 256
//               rows), at 5.5 TB/s where the memory reads 4.3;
//             - a multiprocessor issues the 220 instructions and 32 products of a tile of 1024
//               weights in 55 cycles. The memory reads 18.6 bytes for it in a cycle, so 1.0 for a
//               weight.
constexpr int64_t MostPackedTokens(WeightType type) {
  constexpr double kIssue = 1.0, kActivations = 0.5, kL2 = 5.5 / 4.3;
  constexpr int64_t kCols = 256;  // a whole number of headers
  const double bytes = static_cast<double>(PackedGroupBytes(type, kCols)) / (kGroupRows * kCols);
  const double expanded = (bytes + 2.0 + 2.0) / 0.9;
  const double batch = std::max(kIssue, (bytes + kActivations) / kL2) / 0.6;
  return static_cast<int64_t>(expanded / batch) * kPackedBatch;
}

// Returns how many blocks share the rows of each of `row_blocks` blocks, each with other parts of
// the sums: a power of two, at most kPackedParts. As many as `num_sms` multiprocessors run at once,
// because their parts cost 64 bytes of L2 for each token and row.
constexpr int PackedBlocksPerRow(int64_t row_blocks, int num_sms) {
  int blocks = 1;
  while (blocks < 8 && row_blocks * blocks * 2 <= num_sms) blocks *= 2;
  return blocks;
}

}  // namespace quire::kernels::cuda
