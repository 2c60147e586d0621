#include "kernels/cuda/attention/fp8_attention.cuh"
#include "kernels/cuda/attention/fp8_attention.h"

namespace quire::kernels::cuda {
namespace {

template <typename T, int kHeadDim>
constexpr Fp8AttnInstance<T> kInstance = {
    kHeadDim, AttnShape<kHeadDim, 4, sizeof(E4M3)>::kSharedBytes,
    WideAttnShape<kHeadDim, E4M3>::kSharedBytes, &Fp8AttnKernel<T, kHeadDim>, E4M3In<T>::kFactor};

// As paged_attention.cu, without the head_dims that few models have.
template <typename T>
constexpr Fp8AttnInstance<T> kInstances[] = {kInstance<T, 64>, kInstance<T, 128>,
                                             kInstance<T, 256>};

}  // namespace

template <typename T>
const Fp8AttnInstance<T>* FindFp8Attention(int64_t head_dim) {
  for (const Fp8AttnInstance<T>& instance : kInstances<T>) {
    if (instance.head_dim == head_dim) return &instance;
  }
  return nullptr;
}

template const Fp8AttnInstance<Bf16>* FindFp8Attention<Bf16>(int64_t head_dim);
template const Fp8AttnInstance<F16>* FindFp8Attention<F16>(int64_t head_dim);

}  // namespace quire::kernels::cuda
