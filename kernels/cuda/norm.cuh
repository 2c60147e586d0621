#pragma once

#include "kernels/cuda/rows.cuh"

namespace quire::kernels::cuda {

struct NormParams {
  void* out;          // [tokens, hidden]; may be `input`
  const void* input;  // [tokens, hidden]
  const float* weight;
  const float* bias;  // null without one
  int64_t hidden;
  float eps;
  bool layer_norm;
};

// One block a token. The row is read again for each pass: it is in the cache by then.
template <typename T, int kCount>
__global__ void NormKernel(const __grid_constant__ NormParams p) {
  float* const shared = DynamicShared<float>();
  const T* const input = static_cast<const T*>(p.input) + int64_t{blockIdx.x} * p.hidden;
  T* const out = static_cast<T*>(p.out) + int64_t{blockIdx.x} * p.hidden;
  const float size = static_cast<float>(p.hidden);

  float mean = 0.0f;
  if (p.layer_norm) {
    float sum = 0.0f;
    ForEachVector<kCount>(p.hidden, [&](int64_t i) {
      float x[kCount];
      LoadElements(input + i, x);
#pragma unroll
      for (int j = 0; j < kCount; ++j) sum += x[j];
    });
    mean = BlockSum(sum, shared) / size;
  }
  float squares = 0.0f;
  ForEachVector<kCount>(p.hidden, [&](int64_t i) {
    float x[kCount];
    LoadElements(input + i, x);
#pragma unroll
    for (int j = 0; j < kCount; ++j) squares += (x[j] - mean) * (x[j] - mean);
  });
  const float inverse = 1.0f / sqrtf(BlockSum(squares, shared) / size + p.eps);
  ForEachVector<kCount>(p.hidden, [&](int64_t i) {
    float x[kCount], weight[kCount], bias[kCount] = {};
    LoadElements(input + i, x);
    LoadElements(p.weight + i, weight);
    if (p.bias != nullptr) LoadElements(p.bias + i, bias);
#pragma unroll
    for (int j = 0; j < kCount; ++j) x[j] = (x[j] - mean) * inverse * weight[j] + bias[j];
    StoreElements(out + i, x);
  });
}

}  // namespace quire::kernels::cuda
