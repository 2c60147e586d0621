#include "kernels/cuda/attention/prefill_attention.cuh"
#include "kernels/cuda/attention/prefill_attention.h"

namespace quire::kernels::cuda {
namespace {

template <typename T, int kHeadDim>
constexpr PrefillInstance<T> kInstance = {kHeadDim, /*fp8=*/false, PrefillShape<kHeadDim>::kKeys,
                                          PrefillSharedBytes<T, T, kHeadDim>(),
                                          &PrefillAttnKernel<T, kHeadDim>};

template <typename T, int kHeadDim>
constexpr PrefillInstance<T> kFp8Instance = {kHeadDim, /*fp8=*/true, PrefillShape<kHeadDim>::kKeys,
                                             PrefillSharedBytes<T, E4M3, kHeadDim>(),
                                             &Fp8PrefillAttnKernel<T, kHeadDim>};

template <typename T>
constexpr PrefillInstance<T> kInstances[] = {kInstance<T, 64>,     kInstance<T, 128>,
                                             kInstance<T, 256>,    kFp8Instance<T, 64>,
                                             kFp8Instance<T, 128>, kFp8Instance<T, 256>};

}  // namespace

template <typename T>
const PrefillInstance<T>* FindPrefill(int64_t head_dim, bool fp8) {
  for (const PrefillInstance<T>& instance : kInstances<T>) {
    if (instance.head_dim == head_dim && instance.fp8 == fp8) return &instance;
  }
  return nullptr;
}

template const PrefillInstance<Bf16>* FindPrefill<Bf16>(int64_t head_dim, bool fp8);
template const PrefillInstance<F16>* FindPrefill<F16>(int64_t head_dim, bool fp8);

}  // namespace quire::kernels::cuda
