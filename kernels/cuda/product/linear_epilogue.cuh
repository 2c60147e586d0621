#pragma once

#include "kernels/activation.h"
#include "kernels/cuda/device/rows.cuh"

namespace quire::kernels::cuda {

struct LinearEpilogueParams {
  void* out;  // [tokens, cols]
  // [tokens, cols] or, if gated, [tokens, 2 * cols]: gate, then up. May be `out` if the activation
  // is not gated and `out` is float32.
  const float* y;
  const float* bias;     // as long as a row of y; null: no bias
  const void* residual;  // [tokens, cols], may be `out`; null: no residual
  int64_t cols;
  Activation activation;
  float activation_limit;  // of kClampedSiluMul
  float soft_cap;          // 0: no cap
};

inline constexpr int kEpilogueThreads = 128;

// Returns y / (1 + e^-x).
__device__ inline float TimesLogistic(float y, float x) { return y / (1.0f + expf(-x)); }

__device__ inline float Activate(Activation activation, float y) {
  switch (activation) {
    case Activation::kNone:
      return y;
    case Activation::kGelu:  // erfc avoids cancellation for negative y
      return 0.5f * y * erfcf(-0.70710678118654752f * y);
    case Activation::kGeluTanh:
    case Activation::kGeluTanhMul:  // (1 + tanh(x)) / 2 is the logistic function of 2 x
      return TimesLogistic(y, 1.5957691216057308f * fmaf(0.044715f, y * y * y, y));
    case Activation::kSiluMul:
      return TimesLogistic(y, y);
    case Activation::kClampedSiluMul:
      return TimesLogistic(y, kClampedSiluAlpha * y);
  }
  return y;
}

// Returns the larger of a and b. If b is NaN, the result is NaN.
__device__ inline float AtLeast(float a, float b) { return b < a ? a : b; }
__device__ inline float AtMost(float a, float b) { return b > a ? a : b; }

// Returns the result of a gated activation.
__device__ inline float ActivateGated(Activation activation, float limit, float gate, float up) {
  if (activation == Activation::kClampedSiluMul) {
    gate = AtMost(limit, gate);
    up = AtMost(limit, AtLeast(-limit, up)) + 1.0f;
  }
  return Activate(activation, gate) * up;
}

// Grid: [tokens, parts of a row]. Each thread computes kCount elements.
template <typename T, int kCount>
__global__ void __launch_bounds__(kEpilogueThreads)
    LinearEpilogueKernel(const __grid_constant__ LinearEpilogueParams p) {
  const int64_t col = (int64_t{blockIdx.y} * kEpilogueThreads + threadIdx.x) * kCount;
  if (col >= p.cols) return;
  const int64_t at = int64_t{blockIdx.x} * p.cols + col;
  const auto load_y = [&](int64_t part, float(&values)[kCount]) {
    LoadElements(
        p.y + (IsGated(p.activation) ? 2 : 1) * int64_t{blockIdx.x} * p.cols + part * p.cols + col,
        values);
    if (p.bias == nullptr) return;
    float bias[kCount];
    LoadElements(p.bias + part * p.cols + col, bias);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] += bias[i];
  };

  float values[kCount];
  load_y(0, values);
  if (IsGated(p.activation)) {
    float up[kCount];
    load_y(1, up);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = ActivateGated(p.activation, p.activation_limit, values[i], up[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = Activate(p.activation, values[i]);
  }
  if (p.soft_cap > 0.0f) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = p.soft_cap * tanhf(values[i] / p.soft_cap);
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
