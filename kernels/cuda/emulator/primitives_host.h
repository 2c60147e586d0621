#pragma once

// The primitives for a C++ compiler. Their signatures are those of primitives_ptx.cuh. A primitive
// that checks for misuse has one more parameter, `where`, which defaults to the caller's line.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/device/element_types.h"
#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/emulator/cuda_keywords.h"
#include "kernels/cuda/emulator/runtime.h"
#include "kernels/quant/float16.h"
#include "kernels/quant/float8.h"

namespace quire::kernels::cuda {

namespace emulator {

template <typename T>
constexpr MatrixType TypeOf() {
  static_assert(std::is_same_v<T, Bf16> || std::is_same_v<T, F16>);
  return std::is_same_v<T, Bf16> ? MatrixType::kBf16 : MatrixType::kF16;
}

}  // namespace emulator

template <typename T>
T* DynamicShared() {
  return reinterpret_cast<T*>(emulator::SharedMemory());
}

// --- Numbers

inline float ToFloat(float value) { return value; }
inline float ToFloat(Bf16 value) { return Bf16ToF32(value.bits); }
inline float ToFloat(F16 value) { return F16ToF32(value.bits); }
inline float ToFloat(E4M3 value) { return E4M3ToF32(value.bits); }

template <typename T>
T FromFloat(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, Bf16>) {
    return {F32ToBf16(value)};
  } else if constexpr (std::is_same_v<T, E4M3>) {
    return {F32ToE4M3(value)};
  } else {
    return {F32ToF16(value)};
  }
}

template <typename T>
uint32_t Pack2(float low, float high) {
  return uint32_t{FromFloat<T>(low).bits} | uint32_t{FromFloat<T>(high).bits} << 16;
}

template <typename T>
float2 Unpack2(uint32_t pair) {
  return {ToFloat(T{static_cast<uint16_t>(pair & 0xffff)}),
          ToFloat(T{static_cast<uint16_t>(pair >> 16)})};
}

inline uint32_t AndOr(uint32_t word, uint32_t mask, uint32_t bits) { return (word & mask) | bits; }

template <int kLow, int kHigh>
uint32_t SignExtend(uint32_t word) {
  static_assert(kLow >= 0 && kLow < 4 && kHigh >= 0 && kHigh < 4);
  const auto extended = [word](int byte) {
    const auto value = static_cast<int8_t>(word >> (8 * byte) & 0xff);
    return static_cast<uint32_t>(static_cast<uint16_t>(value));
  };
  return extended(kLow) | extended(kHigh) << 16;
}

inline uint32_t MultiplyBf16(uint32_t a, uint32_t b) {
  const float2 x = Unpack2<Bf16>(a), y = Unpack2<Bf16>(b);
  return Pack2<Bf16>(x.x * y.x, x.y * y.y);
}

inline int Opaque(int value) { return value; }

inline float Exp2(float value) { return std::exp2(value); }
inline float Log2(float value) { return std::log2(value); }
inline float Reciprocal(float value) { return 1.0f / value; }

// --- Memory

template <typename V>
V LoadReadOnly(const void* from, emulator::Where where = {}) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);
  emulator::CheckVectorLoad(from, sizeof(V), where);
  V value;
  std::memcpy(&value, from, sizeof(V));
  return value;
}

template <typename V>
void StoreVector(void* to, V value, emulator::Where where = {}) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);
  emulator::CheckVectorStore(to, sizeof(V), where);
  std::memcpy(to, &value, sizeof(V));
}

template <int kBytes>
void CpAsync(void* shared, const void* global, bool valid, emulator::Where where = {}) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  emulator::IssueCopy(shared, global, kBytes, valid ? kBytes : 0, where);
}
inline void CpAsyncIf(bool wanted, void* shared, const void* global, bool valid,
                      emulator::Where where = {}) {
  if (wanted) CpAsync<16>(shared, global, valid, where);
}
inline void CpAsyncCommit() { emulator::CommitCopies(); }
template <int kInFlight>
void CpAsyncWait() {
  emulator::WaitCopies(kInFlight);
}

// Emulated threads never run at the same time. The built-in tells ThreadSanitizer that the access
// is atomic.
template <typename T>
T AtomicAdd(T* to, T value) {
  emulator::LetOthersRun();
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
inline void AtomicMax(int32_t* to, int32_t value) {
  emulator::LetOthersRun();
  int32_t now = __atomic_load_n(to, __ATOMIC_RELAXED);
  while (now < value && !__atomic_compare_exchange_n(to, &now, value, /*weak=*/true,
                                                     __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// --- Matrices

template <int kMatrices>
void LdMatrix(uint32_t (&r)[kMatrices], const void* row, emulator::Where where = {}) {
  static_assert(kMatrices == 1 || kMatrices == 2 || kMatrices == 4);
  emulator::LoadMatrices(r, kMatrices, /*transposed=*/false, row, where);
}
template <int kMatrices>
void LdMatrixTransposed(uint32_t (&r)[kMatrices], const void* row, emulator::Where where = {}) {
  static_assert(kMatrices == 1 || kMatrices == 2 || kMatrices == 4);
  emulator::LoadMatrices(r, kMatrices, /*transposed=*/true, row, where);
}

template <typename T>
void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
         emulator::Where where = {}) {
  emulator::MultiplyTile(c, a, b0, b1, emulator::TypeOf<T>(), where);
}

// --- Between warps and between kernels

inline void NamedBarrier(int id, int num_threads, emulator::Where where = {}) {
  emulator::SyncNamed(id, num_threads, where);
}

inline void MbarrierInit(uint64_t* barrier, int arrivals, emulator::Where where = {}) {
  emulator::InitMbarrier(barrier, arrivals, where);
}
inline void MbarrierArrive(uint64_t* barrier, emulator::Where where = {}) {
  emulator::ArriveMbarrier(barrier, 0, where);
}
inline void MbarrierArriveExpect(uint64_t* barrier, int bytes, emulator::Where where = {}) {
  emulator::ArriveMbarrier(barrier, bytes, where);
}
inline void MbarrierWait(uint64_t* barrier, int parity, emulator::Where where = {}) {
  emulator::WaitMbarrier(barrier, parity, where);
}
inline void FenceMbarrierInit() {}
inline void FenceAsyncProxy() { emulator::FenceAsyncProxy(); }

template <int kRank>
void TmaLoad(void* shared, const TensorMap& map, uint64_t* barrier, const int (&coordinates)[kRank],
             emulator::Where where = {}) {
  emulator::LoadTensor(shared, map, barrier, coordinates, kRank, where);
}

// The emulator does not count registers. It only checks that the chip has setmaxnreg.
template <int kRegisters>
void ShrinkRegisters(emulator::Where where = {}) {
  emulator::RequireHopper("setmaxnreg", where);
}
template <int kRegisters>
void GrowRegisters(emulator::Where where = {}) {
  emulator::RequireHopper("setmaxnreg", where);
}

// --- Warpgroup matrices

inline uint64_t WgmmaDescriptor(const void* shared, uint32_t leading_bytes, uint32_t stride_bytes) {
  const auto offset =
      static_cast<uint64_t>(static_cast<const unsigned char*>(shared) - emulator::SharedMemory());
  return (offset & 0x3ffff) >> 4 | uint64_t{leading_bytes >> 4} << 16 |
         uint64_t{stride_bytes >> 4} << 32 | uint64_t{1} << 62;
}

template <typename T, int kTiles>
void WgmmaShared(float (&d)[kTiles][4], uint64_t a, uint64_t b, bool accumulate,
                 emulator::Where where = {}) {
  static_assert(kTiles == 8 || kTiles == 16);
  emulator::IssueWgmma({.d = d[0],
                        .num_accumulators = 4 * kTiles,
                        .a = a,
                        .b = b,
                        .a_registers = {},
                        .a_in_registers = false,
                        .accumulate = accumulate,
                        .type = emulator::TypeOf<T>()},
                       where);
}
template <typename T, int kTiles>
void WgmmaRegisters(float (&d)[kTiles][4], const uint32_t (&a)[4], uint64_t b,
                    emulator::Where where = {}) {
  static_assert(kTiles == 8 || kTiles == 16 || kTiles == 32);
  emulator::IssueWgmma({.d = d[0],
                        .num_accumulators = 4 * kTiles,
                        .a = 0,
                        .b = b,
                        .a_registers = {a[0], a[1], a[2], a[3]},
                        .a_in_registers = true,
                        .accumulate = true,
                        .type = emulator::TypeOf<T>()},
                       where);
}
inline void WgmmaFence(emulator::Where where = {}) { emulator::FenceWgmma(where); }
inline void WgmmaCommit(emulator::Where where = {}) { emulator::CommitWgmma(where); }
template <int kInFlight>
void WgmmaWait(emulator::Where where = {}) {
  emulator::WaitWgmma(kInFlight, where);
}

inline void GridDependencyWait(emulator::Where where = {}) {
  emulator::WaitForPreviousLaunch(where);
}
// Does nothing, because the next launch always runs ahead (work_queue.h).
inline void GridDependencyLaunch() {}

}  // namespace quire::kernels::cuda
