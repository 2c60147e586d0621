#include "kernels/cuda/attention/skipping_attention.cuh"
#include "kernels/cuda/attention/skipping_attention.h"

namespace quire::kernels::cuda {
namespace {

template <typename T>
struct Instance {
  int64_t head_dim;
  bool fp8;
  AttnFunction<T> kernel;
};

// The head_dims of models with ALiBi.
template <typename T>
constexpr Instance<T> kInstances[] = {
    {32, false, &SkippingAttnKernel<T, 32, T>},   {64, false, &SkippingAttnKernel<T, 64, T>},
    {80, false, &SkippingAttnKernel<T, 80, T>},   {96, false, &SkippingAttnKernel<T, 96, T>},
    {112, false, &SkippingAttnKernel<T, 112, T>}, {128, false, &SkippingAttnKernel<T, 128, T>},
    {64, true, &SkippingAttnKernel<T, 64, E4M3>}, {128, true, &SkippingAttnKernel<T, 128, E4M3>},
};

}  // namespace

template <typename T>
AttnFunction<T> FindSkippingAttention(int64_t head_dim, bool fp8) {
  for (const Instance<T>& instance : kInstances<T>) {
    if (instance.head_dim == head_dim && instance.fp8 == fp8) return instance.kernel;
  }
  return nullptr;
}

template AttnFunction<Bf16> FindSkippingAttention<Bf16>(int64_t head_dim, bool fp8);
template AttnFunction<F16> FindSkippingAttention<F16>(int64_t head_dim, bool fp8);

}  // namespace quire::kernels::cuda
