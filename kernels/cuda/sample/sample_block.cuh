#pragma once

// Functions that the threads of a block compute together for one row of logits (sample.cuh).

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cuda/device/rows.cuh"
#include "kernels/sampling/exp.h"
#include "kernels/sampling/row_passes.h"

namespace quire::kernels::cuda {

// A block has at most this many warps.
inline constexpr int kMostWarps = 32;

// Returns the combination of the values of all threads of the block, in every thread. `combine` is
// associative and commutative. `shared` has room for a value of each warp. All threads of the block
// call this, and the block consists of whole warps.
template <typename T, typename Combine>
__device__ __forceinline__ T BlockReduce(T value, void* shared, Combine combine) {
#pragma unroll
  for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, mask));
  }
  T* const of_warps = static_cast<T*>(shared);
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  if (threadIdx.x % kWarpLanes == 0) of_warps[warp] = value;
  __syncthreads();
  value = of_warps[0];
  for (int i = 1; i < static_cast<int>(blockDim.x) / kWarpLanes; ++i) {
    value = combine(value, of_warps[i]);
  }
  __syncthreads();  // after this barrier, `shared` may be written again
  return value;
}

__device__ __forceinline__ int64_t BlockSumOf(int64_t value, void* shared) {
  return BlockReduce(value, shared, [](int64_t a, int64_t b) { return a + b; });
}

// Calls body(id, logit) for each id of the row that this thread has.
template <typename Body>
__device__ __forceinline__ void ForEachId(const float* logits, int size, Body body) {
#pragma unroll 4
  for (int id = static_cast<int>(threadIdx.x); id < size; id += static_cast<int>(blockDim.x)) {
    body(id, logits[id]);
  }
}

// A key that orders (logit, id): the larger logit has the larger key, and of equal logits the lower
// id. NaN counts as -infinity, and -0 as 0.
__device__ __forceinline__ uint64_t LogitKey(float logit, int id) {
  const float ordered = logit > -INFINITY ? logit + 0.0f : -INFINITY;
  const uint32_t bits = std::bit_cast<uint32_t>(ordered);
  const uint32_t order = (bits >> 31) != 0u ? ~bits : bits | 0x80000000u;
  return uint64_t{order} << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
__device__ __forceinline__ int IdOfKey(uint64_t key) {
  return static_cast<int>(0xffffffffu - static_cast<uint32_t>(key));
}
__device__ __forceinline__ float LogitOfKey(uint64_t key) {
  const auto order = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>((order >> 31) != 0u ? order & 0x7fffffffu : ~order);
}
__device__ __forceinline__ uint64_t LargestKey(uint64_t key, void* shared) {
  return BlockReduce(key, shared, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
}

// A row to draw from. `max` is its largest logit, to which weights are relative.
struct LogitRow {
  const float* logits;
  int size;
  float max;
  float temperature;
};

// Returns the weight of a logit in units, of which kWeightUnits are 1.
__device__ __forceinline__ int64_t WeightUnits(const LogitRow& row, float logit) {
  const float exponential = sampling::ExpOfNonPositive((logit - row.max) / row.temperature);
  return static_cast<int64_t>(sampling::RoundWeight(exponential) * sampling::kWeightUnits);
}

// A place in an order of ids: by distance, then by descending logit, then by id. Where the distance
// does not matter, it is 0.
struct IdPlace {
  double distance = 0.0;
  float logit = 0.0f;
  int id = 0;
};
__device__ __forceinline__ bool NotAfter(const IdPlace& a, const IdPlace& b) {
  if (a.distance != b.distance) return a.distance < b.distance;
  return a.logit != b.logit ? a.logit > b.logit : a.id <= b.id;
}

// The ids from which a token may still be drawn.
struct KeptIds {
  bool cuts = false;            // top_k or top_p: ids up to `last`
  bool cuts_untypical = false;  // typical_p: ids up to `last_typical`
  IdPlace last, last_typical;
  double mean_depth = 0.0;
  double lowest = -std::numeric_limits<double>::infinity();  // min_p

  __device__ __forceinline__ double Distance(const LogitRow& row, float logit) const {
    const double depth = sampling::Depth(logit, row.max, row.temperature);
    return mean_depth > depth ? mean_depth - depth : depth - mean_depth;
  }
  __device__ __forceinline__ bool Has(const LogitRow& row, int id, float logit) const {
    if (!(logit > -INFINITY) || !(logit >= lowest)) return false;
    if (cuts && !NotAfter({.logit = logit, .id = id}, last)) return false;
    return !cuts_untypical ||
           NotAfter({.distance = Distance(row, logit), .logit = logit, .id = id}, last_typical);
  }
};

}  // namespace quire::kernels::cuda
