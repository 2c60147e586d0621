#pragma once

// The functions that primitives.cuh describes, implemented with PTX.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/element_types.h"
#include "kernels/cuda/device/tensor_map.h"
#include "kernels/quant/float8.h"

namespace quire::kernels::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

template <typename T>
__device__ __forceinline__ T* DynamicShared() {
  extern __shared__ __align__(1024) unsigned char quire_dynamic_shared[];
  return reinterpret_cast<T*>(quire_dynamic_shared);
}

// --- Numbers

__device__ __forceinline__ float ToFloat(float value) { return value; }
__device__ __forceinline__ float ToFloat(Bf16 value) {
  return __uint_as_float(uint32_t{value.bits} << 16);
}
__device__ __forceinline__ float ToFloat(F16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}

__device__ __forceinline__ float ToFloat(E4M3 value) { return E4M3ToF32(value.bits); }

template <typename T>
__device__ __forceinline__ T FromFloat(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, E4M3>) {
    return {F32ToE4M3(value)};
  } else {
    T result;
    if constexpr (std::is_same_v<T, Bf16>) {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    } else {
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    }
    return result;
  }
}

template <typename T>
__device__ __forceinline__ uint32_t Pack2(float low, float high) {
  uint32_t result;
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  }
  return result;
}

template <typename T>
__device__ __forceinline__ float2 Unpack2(uint32_t pair) {
  return make_float2(ToFloat(T{static_cast<uint16_t>(pair & 0xffff)}),
                     ToFloat(T{static_cast<uint16_t>(pair >> 16)}));
}

__device__ __forceinline__ uint32_t AndOr(uint32_t word, uint32_t mask, uint32_t bits) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
  return result;
}

template <int kLow, int kHigh>
__device__ __forceinline__ uint32_t SignExtend(uint32_t word) {
  static_assert(kLow >= 0 && kLow < 4 && kHigh >= 0 && kHigh < 4);
  uint32_t result;
  // 8 in a selector's nibble takes a byte's sign instead of its bits.
  asm("prmt.b32 %0, %1, 0, %2;"
      : "=r"(result)
      : "r"(word), "n"(0x8080 + kLow * 0x11 + kHigh * 0x1100));
  return result;
}

__device__ __forceinline__ uint32_t MultiplyBf16(uint32_t a, uint32_t b) {
  uint32_t result;
  // sm_80 has no mul.bf16x2. The sum with -0 changes no product, 0 and -0 included.
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(0x80008000));
  return result;
}

__device__ __forceinline__ int Opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

__device__ __forceinline__ float Exp2(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
__device__ __forceinline__ float Log2(float value) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
__device__ __forceinline__ float Reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// --- Memory

// Volatile, so that the compiler never moves a load before GridDependencyWait.
template <typename V>
__device__ __forceinline__ V LoadReadOnly(const void* from) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);
  union {
    V value;
    uint32_t words[sizeof(V) / 4];
  } result;
  if constexpr (sizeof(V) == 16) {
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(result.words[0]), "=r"(result.words[1]), "=r"(result.words[2]),
                   "=r"(result.words[3])
                 : "l"(from)
                 : "memory");
  } else if constexpr (sizeof(V) == 8) {
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];"
                 : "=r"(result.words[0]), "=r"(result.words[1])
                 : "l"(from)
                 : "memory");
  } else {
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(result.words[0]) : "l"(from) : "memory");
  }
  return result.value;
}

template <typename V>
__device__ __forceinline__ void StoreVector(void* to, V value) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);
  *static_cast<V*>(to) = value;
}

template <int kBytes>
__device__ __forceinline__ void CpAsync(void* shared, const void* global, bool valid) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  const int source_bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile(
        "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)),
        "l"(global), "r"(source_bytes)
        : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(SharedAddress(shared)),
                 "l"(global), "n"(kBytes), "r"(source_bytes)
                 : "memory");
  }
}
__device__ __forceinline__ void CpAsyncIf(bool wanted, void* shared, const void* global,
                                          bool valid) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.s32 wanted, %3, 0;\n"
      "@wanted cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n"
      "}" ::"r"(SharedAddress(shared)),
      "l"(global), "r"(valid ? 16 : 0), "r"(int{wanted})
      : "memory");
}
__device__ __forceinline__ void CpAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kInFlight>
__device__ __forceinline__ void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kInFlight) : "memory");
}

template <typename T>
__device__ __forceinline__ T AtomicAdd(T* to, T value) {
  if constexpr (sizeof(T) == 8) {
    using Word = unsigned long long;  // a sum in two's complement is the same without a sign
    return static_cast<T>(atomicAdd(reinterpret_cast<Word*>(to), static_cast<Word>(value)));
  } else {
    return static_cast<T>(atomicAdd(reinterpret_cast<unsigned*>(to), static_cast<unsigned>(value)));
  }
}
__device__ __forceinline__ void AtomicMax(int32_t* to, int32_t value) { atomicMax(to, value); }

// --- Matrices

__device__ __forceinline__ void LdMatrix(uint32_t (&r)[1], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(r[0])
               : "r"(SharedAddress(row))
               : "memory");
}
__device__ __forceinline__ void LdMatrix(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(SharedAddress(row))
               : "memory");
}
__device__ __forceinline__ void LdMatrix(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
__device__ __forceinline__ void LdMatrixTransposed(uint32_t (&r)[1], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
               : "=r"(r[0])
               : "r"(SharedAddress(row))
               : "memory");
}
__device__ __forceinline__ void LdMatrixTransposed(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(SharedAddress(row))
               : "memory");
}
__device__ __forceinline__ void LdMatrixTransposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}

template <typename T>
__device__ __forceinline__ void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// --- Between warps and between kernels

__device__ __forceinline__ void NamedBarrier(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

__device__ __forceinline__ void GridDependencyWait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void GridDependencyLaunch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// --- Asynchronous barriers, TMA (sm_90)

__device__ __forceinline__ void MbarrierInit(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}
__device__ __forceinline__ void MbarrierArrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
__device__ __forceinline__ void MbarrierArriveExpect(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void MbarrierWait(uint64_t* barrier, int parity) {
  // PTX labels inside braces are local to the braces. So this function can be inlined several times
  // into one kernel.
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "TRY:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra TRY;\n"
      "DONE:\n"
      "}" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void FenceMbarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int kRank>
__device__ __forceinline__ void TmaLoad(void* shared, const TensorMap& map, uint64_t* barrier,
                                        const int (&c)[kRank]) {
  static_assert(kRank >= 2 && kRank <= 5);
  const uint32_t to = SharedAddress(shared), done = SharedAddress(barrier);
  if constexpr (kRank == 2) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4}], [%2];" ::"r"(to),
        "l"(&map), "r"(done), "r"(c[0]), "r"(c[1])
        : "memory");
  } else if constexpr (kRank == 3) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5}], [%2];" ::"r"(to),
        "l"(&map), "r"(done), "r"(c[0]), "r"(c[1]), "r"(c[2])
        : "memory");
  } else if constexpr (kRank == 4) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
        "l"(&map), "r"(done), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3])
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
        "l"(&map), "r"(done), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4])
        : "memory");
  }
}

template <int kRegisters>
__device__ __forceinline__ void ShrinkRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void GrowRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// --- Warpgroup matrices (sm_90a)

__device__ __forceinline__ uint64_t WgmmaDescriptor(const void* shared, uint32_t leading_bytes,
                                                    uint32_t stride_bytes) {
  return static_cast<uint64_t>((SharedAddress(shared) & 0x3ffff) >> 4) |
         static_cast<uint64_t>(leading_bytes >> 4) << 16 |
         static_cast<uint64_t>(stride_bytes >> 4) << 32 | uint64_t{1} << 62;
}

// The accumulators of 64, 128 and 256 columns are written out, because asm does not accept an
// array.
#define QUIRE_WGMMA_REGISTERS_64                                         \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define QUIRE_WGMMA_REGISTERS_128                                                    \
  QUIRE_WGMMA_REGISTERS_64                                                           \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define QUIRE_WGMMA_REGISTERS_256                                                                \
  QUIRE_WGMMA_REGISTERS_128                                                                      \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"
#define QUIRE_WGMMA_TILE(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define QUIRE_WGMMA_TILES(n)                                                                      \
  QUIRE_WGMMA_TILE(n), QUIRE_WGMMA_TILE(n + 1), QUIRE_WGMMA_TILE(n + 2), QUIRE_WGMMA_TILE(n + 3), \
      QUIRE_WGMMA_TILE(n + 4), QUIRE_WGMMA_TILE(n + 5), QUIRE_WGMMA_TILE(n + 6),                  \
      QUIRE_WGMMA_TILE(n + 7)
#define QUIRE_WGMMA_TILES_64 QUIRE_WGMMA_TILES(0)
#define QUIRE_WGMMA_TILES_128 QUIRE_WGMMA_TILES_64, QUIRE_WGMMA_TILES(8)
#define QUIRE_WGMMA_TILES_256 QUIRE_WGMMA_TILES_128, QUIRE_WGMMA_TILES(16), QUIRE_WGMMA_TILES(24)

// The strings name the operands after the accumulators.
#define QUIRE_WGMMA_SHARED(columns, type, a_operand, b_operand, p_operand)           \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p_operand                         \
               ", 0;\n"                                                              \
               "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type \
               " {" QUIRE_WGMMA_REGISTERS_##columns "}, " a_operand ", " b_operand   \
                                                    ", p, 1, 1, 0, 0;\n}"            \
               : QUIRE_WGMMA_TILES_##columns                                         \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))
#define QUIRE_WGMMA_REGISTERS_A(columns, type, a_operands, b_operand)                 \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type  \
               " {" QUIRE_WGMMA_REGISTERS_##columns "}, {" a_operands "}, " b_operand \
                                                    ", 1, 1, 1, 1;"                   \
               : QUIRE_WGMMA_TILES_##columns                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define QUIRE_WGMMA_OF_TYPE(product, columns, ...) \
  if constexpr (std::is_same_v<T, Bf16>) {         \
    product(columns, "bf16", __VA_ARGS__);         \
  } else {                                         \
    product(columns, "f16", __VA_ARGS__);          \
  }

template <typename T, int kTiles>
__device__ __forceinline__ void WgmmaShared(float (&d)[kTiles][4], uint64_t a, uint64_t b,
                                            bool accumulate) {
  static_assert(kTiles == 8 || kTiles == 16);
  if constexpr (kTiles == 8) {
    QUIRE_WGMMA_OF_TYPE(QUIRE_WGMMA_SHARED, 64, "%32", "%33", "%34")
  } else {
    QUIRE_WGMMA_OF_TYPE(QUIRE_WGMMA_SHARED, 128, "%64", "%65", "%66")
  }
}
template <typename T, int kTiles>
__device__ __forceinline__ void WgmmaRegisters(float (&d)[kTiles][4], const uint32_t (&a)[4],
                                               uint64_t b) {
  static_assert(kTiles == 8 || kTiles == 16 || kTiles == 32);
  if constexpr (kTiles == 8) {
    QUIRE_WGMMA_OF_TYPE(QUIRE_WGMMA_REGISTERS_A, 64, "%32, %33, %34, %35", "%36")
  } else if constexpr (kTiles == 16) {
    QUIRE_WGMMA_OF_TYPE(QUIRE_WGMMA_REGISTERS_A, 128, "%64, %65, %66, %67", "%68")
  } else {
    QUIRE_WGMMA_OF_TYPE(QUIRE_WGMMA_REGISTERS_A, 256, "%128, %129, %130, %131", "%132")
  }
}

#undef QUIRE_WGMMA_OF_TYPE
#undef QUIRE_WGMMA_REGISTERS_A
#undef QUIRE_WGMMA_SHARED
#undef QUIRE_WGMMA_TILES_256
#undef QUIRE_WGMMA_TILES_128
#undef QUIRE_WGMMA_TILES_64
#undef QUIRE_WGMMA_TILES
#undef QUIRE_WGMMA_TILE
#undef QUIRE_WGMMA_REGISTERS_256
#undef QUIRE_WGMMA_REGISTERS_128
#undef QUIRE_WGMMA_REGISTERS_64

__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kInFlight>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kInFlight) : "memory");
}

}  // namespace quire::kernels::cuda
