#pragma once

#include "kernels/cuda/device/rows.cuh"

namespace quire::kernels::cuda {

struct NormParams {
  void* out;          // [tokens, hidden]; may be `input`
  const void* input;  // [tokens, hidden]
  const float* weight;
  const float* bias;  // null: no bias
  void* residual;     // [tokens, hidden]; null: no residual
  int64_t hidden;
  float eps;
  bool layer_norm;
};

// Normalising a row replaces each element x by (x - mean) * inverse. For RMS norm, mean is 0.
struct NormScale {
  float mean, inverse;
};

// Computes the NormScale of a row of `count` elements. `load(i, x)` must set x to the kCount
// elements that start at index i. In every pass, a thread loads the same elements again. All
// threads of the block must call this.
template <int kCount, typename Load>
__device__ __forceinline__ NormScale ScaleOf(int64_t count, bool layer_norm, float eps,
                                             float* shared, Load load) {
  const float size = static_cast<float>(count);
  float mean = 0.0f;
  if (layer_norm) {
    float sum = 0.0f;
    ForEachVector<kCount>(count, [&](int64_t i) {
      float x[kCount];
      load(i, x);
#pragma unroll
      for (int j = 0; j < kCount; ++j) sum += x[j];
    });
    mean = BlockSum(sum, shared) / size;
  }
  float squares = 0.0f;
  ForEachVector<kCount>(count, [&](int64_t i) {
    float x[kCount];
    load(i, x);
#pragma unroll
    for (int j = 0; j < kCount; ++j) squares += (x[j] - mean) * (x[j] - mean);
  });
  return {mean, 1.0f / sqrtf(BlockSum(squares, shared) / size + eps)};
}

// One block normalises the row of one token. Each pass reads the row again, which is cheap because
// the row is in the cache after the first pass.
template <typename T, int kCount>
__global__ void NormKernel(const __grid_constant__ NormParams p) {
  const int64_t row = int64_t{blockIdx.x} * p.hidden;
  const T* input = static_cast<const T*>(p.input) + row;
  T* const out = static_cast<T*>(p.out) + row;
  if (p.residual != nullptr) {
    T* const residual = static_cast<T*>(p.residual) + row;
    ForEachVector<kCount>(p.hidden, [&](int64_t i) {
      float x[kCount], sum[kCount];
      LoadElements(input + i, x);
      LoadElements(residual + i, sum);
#pragma unroll
      for (int j = 0; j < kCount; ++j) sum[j] += x[j];
      StoreElements(residual + i, sum);
    });
    input = residual;
  }
  const NormScale scale =
      ScaleOf<kCount>(p.hidden, p.layer_norm, p.eps, DynamicShared<float>(),
                      [&](int64_t i, float(&x)[kCount]) { LoadElements(input + i, x); });
  ForEachVector<kCount>(p.hidden, [&](int64_t i) {
    float x[kCount], weight[kCount], bias[kCount] = {};
    LoadElements(input + i, x);
    LoadElements(p.weight + i, weight);
    if (p.bias != nullptr) LoadElements(p.bias + i, bias);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      x[j] = (x[j] - scale.mean) * scale.inverse * weight[j] + bias[j];
    }
    StoreElements(out + i, x);
  });
}

}  // namespace quire::kernels::cuda
