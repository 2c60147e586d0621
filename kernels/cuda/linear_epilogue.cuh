#pragma once

#include "kernels/cuda/rows.cuh"

namespace quire::kernels::cuda {

struct LinearEpilogueParams {
  void* out;             // [tokens, cols]
  const float* y;        // [tokens, cols], or [tokens, 2 * cols]: gate, then up
  const float* bias;     // as long as a row of y; null without one
  const void* residual;  // [tokens, cols], may be `out`; null without one
  int64_t cols;
  bool silu_mul;
};

inline constexpr int kEpilogueThreads = 128;

// Grid [tokens, parts of a row], kCount elements a thread.
template <typename T, int kCount>
__global__ void __launch_bounds__(kEpilogueThreads)
    LinearEpilogueKernel(const __grid_constant__ LinearEpilogueParams p) {
  const int64_t col = (int64_t{blockIdx.y} * kEpilogueThreads + threadIdx.x) * kCount;
  if (col >= p.cols) return;
  const int64_t at = int64_t{blockIdx.x} * p.cols + col;
  const auto load_y = [&](int64_t part, float(&values)[kCount]) {
    LoadElements(p.y + (p.silu_mul ? 2 : 1) * int64_t{blockIdx.x} * p.cols + part * p.cols + col,
                 values);
    if (p.bias == nullptr) return;
    float bias[kCount];
    LoadElements(p.bias + part * p.cols + col, bias);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] += bias[i];
  };

  float values[kCount];
  load_y(0, values);
  if (p.silu_mul) {
    float up[kCount];
    load_y(1, up);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = values[i] / (1.0f + expf(-values[i])) * up[i];
  }
  if (p.residual != nullptr) {
    float residual[kCount];
    LoadElements(static_cast<const T*>(p.residual) + at, residual);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] += residual[i];
  }
  StoreElements(static_cast<T*>(p.out) + at, values);
}

}  // namespace quire::kernels::cuda
