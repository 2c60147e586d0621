// Pairs of kernels: ours_NAME calls functions of primitives.cuh, and theirs_NAME the wrappers of
// CUTLASS for the same instructions. cutlass_wrappers_test.py compares the machine code of both.

// CUTLASS's wrappers of griddepcontrol are empty without it.
#define CUTLASS_ENABLE_GDC_FOR_SM90

#include <cstdint>
#include <utility>

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm80.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/arch/mma_sm80.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/tensor.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/grid_dependency_control.h>
#include <cutlass/arch/reg_reconfig.h>

#include "kernels/cuda/device/primitives.cuh"

namespace {

using namespace quire::kernels::cuda;
namespace gmma = cute::SM90::GMMA;
using gmma::Major;

// Copies a thread's numbers from memory and to it.
template <typename T, int kCount>
__device__ void Load(T (&r)[kCount], const T* from) {
  for (int i = 0; i < kCount; ++i) r[i] = from[i * 128 + threadIdx.x];
}
template <typename T, int kCount>
__device__ void Store(const T (&r)[kCount], T* to) {
  for (int i = 0; i < kCount; ++i) to[i * 128 + threadIdx.x] = r[i];
}
template <int kTiles>
__device__ void Load(float (&d)[kTiles][4], const float* from) {
  for (int i = 0; i < 4 * kTiles; ++i) d[i / 4][i % 4] = from[i * 128 + threadIdx.x];
}
template <int kTiles>
__device__ void Store(const float (&d)[kTiles][4], float* to) {
  for (int i = 0; i < 4 * kTiles; ++i) to[i * 128 + threadIdx.x] = d[i / 4][i % 4];
}

__device__ char* SharedRow() { return DynamicShared<char>() + threadIdx.x * 16; }

template <class Product, int kTiles, class... Operands>
__device__ void Multiply(float (&d)[kTiles][4], Operands... operands) {
  [&]<size_t... kAt>(std::index_sequence<kAt...>) {
    Product::fma(operands..., d[kAt / 4][kAt % 4]..., gmma::ScaleOut::One);
  }
  (std::make_index_sequence<4 * kTiles>());
}

template <bool kOurs, typename T, int kTiles, class Product>
__device__ void WgmmaOfShared(float* out, const float* in, uint64_t a, uint64_t b) {
  float d[kTiles][4];
  Load(d, in);
  if constexpr (kOurs) {
    WgmmaFence();
    WgmmaShared<T>(d, a, b, true);
    WgmmaCommit();
    WgmmaWait<0>();
  } else {
    cute::warpgroup_arrive();
    Multiply<Product>(d, a, b);
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<0>();
  }
  Store(d, out);
}

template <bool kOurs, typename T, int kTiles, class Product>
__device__ void WgmmaOfRegisters(float* out, const float* in, const uint32_t* rows, uint64_t b) {
  float d[kTiles][4];
  uint32_t a[4];
  Load(a, rows);
  Load(d, in);
  if constexpr (kOurs) {
    WgmmaFence();
    WgmmaRegisters<T>(d, a, b);
    WgmmaCommit();
    WgmmaWait<0>();
  } else {
    cute::warpgroup_arrive();
    Multiply<Product>(d, a[0], a[1], a[2], a[3], b);
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<0>();
  }
  Store(d, out);
}

template <bool kOurs>
__device__ void SetRegisters(int* out) {
  if constexpr (kOurs) {
    threadIdx.x < 64 ? ShrinkRegisters<56>() : GrowRegisters<224>();
  } else {
    threadIdx.x < 64 ? cutlass::arch::warpgroup_reg_dealloc<56>()
                     : cutlass::arch::warpgroup_reg_alloc<224>();
  }
  *out = 1;
}

template <bool kOurs, typename T, class Product>
__device__ void MultiplyInWarp(float* sums, const uint32_t* from) {
  uint32_t a[4], b[2];
  float d[4];
  Load(a, from);
  Load(b, from + 4 * 128);
  Load(d, sums);
  if constexpr (kOurs) {
    Mma<T>(d, a, b[0], b[1]);
  } else {
    Product::fma(d[0], d[1], d[2], d[3], a[0], a[1], a[2], a[3], b[0], b[1], d[0], d[1], d[2],
                 d[3]);
  }
  Store(d, sums);
}

template <bool kOurs, int kCount, bool kTransposed, class Copy>
__device__ void LoadMatrices(uint32_t* out) {
  uint32_t r[kCount];
  if constexpr (kOurs) {
    kTransposed ? LdMatrixTransposed(r, SharedRow()) : LdMatrix(r, SharedRow());
  } else {
    [&]<size_t... kAt>(std::index_sequence<kAt...>) {
      Copy::copy(*reinterpret_cast<const cute::uint128_t*>(SharedRow()), r[kAt]...);
    }
    (std::make_index_sequence<kCount>());
  }
  Store(r, out);
}

template <bool kOurs>
__device__ void CopyAsync(const cute::uint128_t* from, int count) {
  const bool valid = static_cast<int>(threadIdx.x) < count;
  if constexpr (kOurs) {
    CpAsync<16>(SharedRow(), from + threadIdx.x, valid);
    CpAsyncCommit();
    CpAsyncWait<1>();
  } else {
    cute::SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<cute::uint128_t>::copy(
        from[threadIdx.x], *reinterpret_cast<cute::uint128_t*>(SharedRow()), valid);
    cute::cp_async_fence();
    cute::cp_async_wait<1>();
  }
}

template <bool kOurs>
__device__ void ArriveAtBarrier(int bytes) {
  uint64_t* const barrier = DynamicShared<uint64_t>();
  using Theirs = cutlass::arch::ClusterTransactionBarrier;
  if (threadIdx.x == 0) {
    if constexpr (kOurs) {
      MbarrierInit(barrier, 5);
      FenceMbarrierInit();
    } else {
      Theirs::init(barrier, 5);
      cutlass::arch::fence_barrier_init();
    }
  }
  __syncthreads();
  if constexpr (kOurs) {
    if (threadIdx.x == 0) MbarrierArriveExpect(barrier, bytes);
    MbarrierArrive(barrier);
  } else {
    if (threadIdx.x == 0) Theirs::arrive_and_expect_tx(barrier, bytes);
    Theirs::arrive(barrier);
  }
}

template <bool kOurs>
__device__ void WaitAtBarrier(int parity) {
  uint64_t* const barrier = DynamicShared<uint64_t>();
  kOurs ? MbarrierWait(barrier, parity) : cutlass::arch::ClusterBarrier::wait(barrier, parity);
}

template <bool kOurs, class Copy, typename... Coordinates>
__device__ void LoadBox(const TensorMap& map, Coordinates... at) {
  uint64_t* const barrier = DynamicShared<uint64_t>();
  if (threadIdx.x != 0) return;
  if constexpr (kOurs) {
    TmaLoad<sizeof...(at)>(barrier + 128, map, barrier, {at...});
  } else {
    constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    Copy::copy(&map, barrier, kHint, barrier + 128, at...);
  }
}

template <bool kOurs>
__device__ void FenceAndBarrier(int* out) {
  DynamicShared<int>()[threadIdx.x] = 1;
  if constexpr (kOurs) {
    FenceAsyncProxy();
    // CUTLASS keeps the first barriers of a block to itself.
    NamedBarrier(3 + cutlass::arch::NamedBarrier::ReservedNamedBarrierCount, 128);
  } else {
    cutlass::arch::fence_view_async_shared();
    cutlass::arch::NamedBarrier::sync(128, uint32_t{3});
  }
  *out = DynamicShared<int>()[5];
}

template <bool kOurs>
__device__ void GridDependency(int* values) {
  kOurs ? GridDependencyWait() : cutlass::arch::wait_on_dependent_grids();
  const int value = *values;
  kOurs ? GridDependencyLaunch() : cutlass::arch::launch_dependent_grids();
  values[threadIdx.x + 1] = value;
}

}  // namespace

// The arguments after `parameters` are the kernel's code, in which kOurs says whose it is.
#define PAIR(name, parameters, ...)                                               \
  extern "C" __global__ void __launch_bounds__(128, 1) ours_##name parameters {   \
    constexpr bool kOurs = true;                                                  \
    __VA_ARGS__;                                                                  \
  }                                                                               \
  extern "C" __global__ void __launch_bounds__(128, 1) theirs_##name parameters { \
    constexpr bool kOurs = false;                                                 \
    __VA_ARGS__;                                                                  \
  }

#define PAIR_OF_SHARED(name, T, tiles, Product)                     \
  PAIR(name, (float* out, const float* in, uint64_t a, uint64_t b), \
       WgmmaOfShared<kOurs, T, tiles, gmma::Product<Major::K, Major::K>>(out, in, a, b))
PAIR_OF_SHARED(wgmma_64, Bf16, 8, MMA_64x64x16_F32BF16BF16_SS)
PAIR_OF_SHARED(wgmma_128, Bf16, 16, MMA_64x128x16_F32BF16BF16_SS)
PAIR_OF_SHARED(wgmma_64_f16, F16, 8, MMA_64x64x16_F32F16F16_SS)
PAIR_OF_SHARED(wgmma_128_f16, F16, 16, MMA_64x128x16_F32F16F16_SS)

#define PAIR_OF_REGISTERS(name, T, tiles, Product)                            \
  PAIR(name, (float* out, const float* in, const uint32_t* rows, uint64_t b), \
       WgmmaOfRegisters<kOurs, T, tiles, gmma::Product<Major::K, Major::MN>>(out, in, rows, b))
PAIR_OF_REGISTERS(wgmma_registers_64, Bf16, 8, MMA_64x64x16_F32BF16BF16_RS)
PAIR_OF_REGISTERS(wgmma_registers_128, Bf16, 16, MMA_64x128x16_F32BF16BF16_RS)
PAIR_OF_REGISTERS(wgmma_registers_256, Bf16, 32, MMA_64x256x16_F32BF16BF16_RS)
PAIR_OF_REGISTERS(wgmma_registers_64_f16, F16, 8, MMA_64x64x16_F32F16F16_RS)
PAIR_OF_REGISTERS(wgmma_registers_128_f16, F16, 16, MMA_64x128x16_F32F16F16_RS)
PAIR_OF_REGISTERS(wgmma_registers_256_f16, F16, 32, MMA_64x256x16_F32F16F16_RS)

PAIR(setmaxnreg, (int* out), SetRegisters<kOurs>(out))

PAIR(mma, (float* sums, const uint32_t* from),
     MultiplyInWarp<kOurs, Bf16, cute::SM80_16x8x16_F32BF16BF16F32_TN>(sums, from))
PAIR(mma_f16, (float* sums, const uint32_t* from),
     MultiplyInWarp<kOurs, F16, cute::SM80_16x8x16_F32F16F16F32_TN>(sums, from))

PAIR(ldmatrix_1, (uint32_t * out), LoadMatrices<kOurs, 1, false, cute::SM75_U32x1_LDSM_N>(out))
PAIR(ldmatrix_2, (uint32_t * out), LoadMatrices<kOurs, 2, false, cute::SM75_U32x2_LDSM_N>(out))
PAIR(ldmatrix_4, (uint32_t * out), LoadMatrices<kOurs, 4, false, cute::SM75_U32x4_LDSM_N>(out))
PAIR(ldmatrix_trans_1, (uint32_t * out), LoadMatrices<kOurs, 1, true, cute::SM75_U16x2_LDSM_T>(out))
PAIR(ldmatrix_trans_2, (uint32_t * out), LoadMatrices<kOurs, 2, true, cute::SM75_U16x4_LDSM_T>(out))
PAIR(ldmatrix_trans_4, (uint32_t * out), LoadMatrices<kOurs, 4, true, cute::SM75_U16x8_LDSM_T>(out))

PAIR(cp_async, (const cute::uint128_t* from, int count), CopyAsync<kOurs>(from, count))
PAIR(mbarrier_arrive, (int bytes), ArriveAtBarrier<kOurs>(bytes))
PAIR(mbarrier_wait, (int parity), WaitAtBarrier<kOurs>(parity))

PAIR(tma_2, (const __grid_constant__ TensorMap map, int x, int y),
     LoadBox<kOurs, cute::SM90_TMA_LOAD_2D>(map, x, y))
PAIR(tma_3, (const __grid_constant__ TensorMap map, int x, int y, int z),
     LoadBox<kOurs, cute::SM90_TMA_LOAD_3D>(map, x, y, z))
PAIR(tma_4, (const __grid_constant__ TensorMap map, int x, int y, int z, int u),
     LoadBox<kOurs, cute::SM90_TMA_LOAD_4D>(map, x, y, z, u))
PAIR(tma_5, (const __grid_constant__ TensorMap map, int x, int y, int z, int u, int v),
     LoadBox<kOurs, cute::SM90_TMA_LOAD_5D>(map, x, y, z, u, v))

PAIR(fence_and_barrier, (int* out), FenceAndBarrier<kOurs>(out))
PAIR(grid_dependency, (int* values), GridDependency<kOurs>(values))
