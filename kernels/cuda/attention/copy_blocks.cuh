#pragma once

#include "kernels/cuda/device/rows.cuh"
#include "kernels/ops/copy_blocks.h"

namespace quire::kernels::cuda {

// The most copies in one launch. The list of copies is part of the kernel's parameters, so that it
// needs no device memory.
inline constexpr int kMaxCopiesPerLaunch = 256;

struct CopyBlocksParams {
  void* blocks;  // [num_blocks, size]
  int64_t size;  // units in a cache block; a unit is kCount 16-bit words
  BlockCopy copies[kMaxCopiesPerLaunch];
};

inline constexpr int kCopyThreads = 128;
inline constexpr int kUnitsPerCopyThread = 8;

// Grid: [parts of a cache block, copies]. Cache blocks are copied in units of kCount 16-bit words.
template <int kCount>
__global__ void __launch_bounds__(kCopyThreads)
    CopyBlocksKernel(const __grid_constant__ CopyBlocksParams p) {
  using Unit = Elements<uint16_t, kCount>;
  const BlockCopy copy = p.copies[blockIdx.y];
  const Unit* const source = static_cast<const Unit*>(p.blocks) + copy.source * p.size;
  Unit* const destination = static_cast<Unit*>(p.blocks) + copy.destination * p.size;
  int64_t i = int64_t{blockIdx.x} * kCopyThreads * kUnitsPerCopyThread + threadIdx.x;
#pragma unroll
  for (int n = 0; n < kUnitsPerCopyThread; ++n, i += kCopyThreads) {
    if (i < p.size) destination[i] = source[i];
  }
}

}  // namespace quire::kernels::cuda
