#include "kernels/cuda/prefill_attention.cuh"
#include "kernels/cuda/prefill_attention.h"

namespace quire::kernels::cuda {
namespace {

template <typename T, int kHeadDim>
constexpr PrefillInstance<T> kInstance = {
    kHeadDim, PrefillShape<kHeadDim>::kKeys,
    static_cast<int64_t>(sizeof(PrefillShared<PrefillShape<kHeadDim>>)),
    &PrefillAttnKernel<T, kHeadDim>};

template <typename T>
constexpr PrefillInstance<T> kInstances[] = {kInstance<T, 64>, kInstance<T, 128>,
                                             kInstance<T, 256>};

}  // namespace

template <typename T>
const PrefillInstance<T>* FindPrefill(int64_t head_dim) {
  for (const PrefillInstance<T>& instance : kInstances<T>) {
    if (instance.head_dim == head_dim) return &instance;
  }
  return nullptr;
}

template const PrefillInstance<Bf16>* FindPrefill<Bf16>(int64_t head_dim);
template const PrefillInstance<F16>* FindPrefill<F16>(int64_t head_dim);

}  // namespace quire::kernels::cuda
