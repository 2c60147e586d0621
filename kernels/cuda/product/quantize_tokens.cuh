#pragma once

// Rounds tokens to e4m3, with scales in the form of GemmScales.

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/rows.cuh"
#include "kernels/quant/float8.h"

namespace quire::kernels::cuda {

struct QuantizeTokensParams {
  E4M3* codes;        // [tokens, cols]
  float* scales;      // kRows: [tokens]; kBlocks: [cols / 128, scale_stride]
  const void* input;  // rows of `cols` elements at multiples of 16 bytes
  int64_t cols;       // a multiple of 8; with kBlocks, of 128
  int64_t stride;     // elements from one row of `input` to the next
  int64_t num_tokens;
  int64_t scale_stride;
};

inline constexpr int kQuantizeCols = 8;  // of a thread: 16 bytes of input

// Elements that share a scale are stored as the codes of x * to_code. A code stands for its number
// times `scale`.
struct CodeScale {
  float scale, to_code;
};

// Returns the bits of |x|. As integers, they have the order of the magnitudes, with infinity and
// then NaN at the top.
__device__ __forceinline__ uint32_t MagnitudeOf(float x) {
  return std::bit_cast<uint32_t>(x) & 0x7fffffffu;
}

// Returns the scale with which the largest magnitude becomes the largest number of e4m3. If it is
// not finite, the scale is NaN, and so is every product with these elements. Magnitudes below
// 2^-100 count as 2^-100, so that to_code is finite.
__device__ __forceinline__ CodeScale ScaleOfLargest(uint32_t magnitude) {
  constexpr uint32_t kInfinity = 0x7f800000u;
  if (magnitude >= kInfinity) {
    return {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::quiet_NaN()};
  }
  const float largest = fmaxf(std::bit_cast<float>(magnitude), 0x1p-100f);
  return {largest / kLargestE4M3, kLargestE4M3 / largest};
}

// Returns the largest value of the lanes whose numbers differ in bits below `lanes`.
__device__ __forceinline__ uint32_t LargestOfLanes(uint32_t value, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) {
    value = std::max(value, __shfl_xor_sync(0xffffffffu, value, mask));
  }
  return value;
}

// The scales of kRows. One block for each token, with shared memory of kBlockSumBytes.
template <typename T>
__global__ void QuantizeRowsKernel(const __grid_constant__ QuantizeTokensParams p) {
  const int64_t token = blockIdx.x;
  const T* const row = static_cast<const T*>(p.input) + token * p.stride;
  uint32_t largest = 0;
  ForEachVector<kQuantizeCols>(p.cols, [&](int64_t i) {
    float x[kQuantizeCols];
    LoadElements(row + i, x);
#pragma unroll
    for (int j = 0; j < kQuantizeCols; ++j) largest = std::max(largest, MagnitudeOf(x[j]));
  });
  largest = LargestOfLanes(largest, kWarpLanes);
  auto* const of_warps = DynamicShared<uint32_t>();
  const unsigned lane = threadIdx.x % kWarpLanes;
  if (lane == 0) of_warps[threadIdx.x / kWarpLanes] = largest;
  __syncthreads();
  largest = LargestOfLanes(lane < blockDim.x / kWarpLanes ? of_warps[lane] : 0, kWarpLanes);

  const CodeScale scale = ScaleOfLargest(largest);
  if (threadIdx.x == 0) p.scales[token] = scale.scale;
  ForEachVector<kQuantizeCols>(p.cols, [&](int64_t i) {
    float x[kQuantizeCols];
    LoadElements(row + i, x);  // from the cache
#pragma unroll
    for (int j = 0; j < kQuantizeCols; ++j) x[j] *= scale.to_code;
    StoreElements(p.codes + token * p.cols + i, x);
  });
}

// The scales of kBlocks. One block for each token; half a warp has the 128 columns of a scale.
template <typename T>
__global__ void QuantizeBlocksKernel(const __grid_constant__ QuantizeTokensParams p) {
  constexpr int kLanes = kScaledGemmBlock / kQuantizeCols;
  const int64_t token = blockIdx.x;
  const T* const row = static_cast<const T*>(p.input) + token * p.stride;
  const int64_t lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
  constexpr int64_t kWarpCols = kWarpLanes * kQuantizeCols;
  for (int64_t first = warp * kWarpCols; first < p.cols;
       first += int64_t{blockDim.x} * kQuantizeCols) {
    const int64_t col = first + lane * kQuantizeCols;
    // All lanes take part in the shuffles, those of a half warp past the end with zeros.
    float x[kQuantizeCols] = {};
    if (col < p.cols) LoadElements(row + col, x);
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < kQuantizeCols; ++j) largest = std::max(largest, MagnitudeOf(x[j]));
    const CodeScale scale = ScaleOfLargest(LargestOfLanes(largest, kLanes));
    if (col >= p.cols) continue;
    if (lane % kLanes == 0) p.scales[col / kScaledGemmBlock * p.scale_stride + token] = scale.scale;
#pragma unroll
    for (int j = 0; j < kQuantizeCols; ++j) x[j] *= scale.to_code;
    StoreElements(p.codes + token * p.cols + col, x);
  }
}

}  // namespace quire::kernels::cuda
