#include "kernels/cuda/fp8_attention.cuh"
#include "kernels/cuda/fp8_attention.h"

namespace quire::kernels::cuda {
namespace {

template <typename T, int kHeadDim, int kRowTiles>
constexpr Fp8AttnInstance<T> kInstance = {
    kHeadDim, kRowTiles, AttnShape<kHeadDim, kRowTiles, sizeof(E4M3)>::kSharedBytes,
    &Fp8AttnKernel<T, kHeadDim, kRowTiles>, E4M3In<T>::kFactor};

// As paged_attention.cu, without the head_dims that few models have.
template <typename T>
constexpr Fp8AttnInstance<T> kInstances[] = {
    kInstance<T, 64, 1>,  kInstance<T, 64, 2>,  kInstance<T, 64, 4>,  kInstance<T, 128, 1>,
    kInstance<T, 128, 2>, kInstance<T, 128, 4>, kInstance<T, 256, 2>, kInstance<T, 256, 4>,
};

}  // namespace

template <typename T>
const Fp8AttnInstance<T>* FindFp8Attention(int64_t head_dim, int32_t row_tiles) {
  for (const Fp8AttnInstance<T>& instance : kInstances<T>) {
    if (instance.head_dim == head_dim && instance.row_tiles == row_tiles) return &instance;
  }
  return nullptr;
}

template const Fp8AttnInstance<Bf16>* FindFp8Attention<Bf16>(int64_t head_dim, int32_t row_tiles);
template const Fp8AttnInstance<F16>* FindFp8Attention<F16>(int64_t head_dim, int32_t row_tiles);

}  // namespace quire::kernels::cuda
