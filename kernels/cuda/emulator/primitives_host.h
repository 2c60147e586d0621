#pragma once

// The primitives for a C++ compiler: the signatures of primitives_ptx.cuh, and a last argument that
// nobody passes, the caller's line.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/element_types.h"
#include "kernels/cuda/emulator/cuda_keywords.h"
#include "kernels/cuda/emulator/runtime.h"
#include "kernels/float16.h"

namespace quire::kernels::cuda {

template <typename T>
T* DynamicShared() {
  return reinterpret_cast<T*>(emulator::SharedMemory());
}

// --- Numbers

inline float ToFloat(float value) { return value; }
inline float ToFloat(Bf16 value) { return Bf16ToF32(value.bits); }
inline float ToFloat(F16 value) { return F16ToF32(value.bits); }

template <typename T>
T FromFloat(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, Bf16>) {
    return {F32ToBf16(value)};
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

inline float Exp2(float value) { return std::exp2(value); }
inline float Log2(float value) { return std::log2(value); }
inline float Tanh(float value) { return std::tanh(value); }
inline float Rsqrt(float value) { return 1.0f / std::sqrt(value); }

// --- Memory

template <typename V>
V LoadReadOnly(const void* from, emulator::Where where = {}) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);
  emulator::CheckAligned(from, sizeof(V), "a vector load", where);
  V value;
  std::memcpy(&value, from, sizeof(V));
  return value;
}

template <typename V>
void StoreVector(void* to, V value, emulator::Where where = {}) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);
  emulator::CheckAligned(to, sizeof(V), "a vector store", where);
  std::memcpy(to, &value, sizeof(V));
}

template <int kBytes>
void CpAsync(void* shared, const void* global, bool valid, emulator::Where where = {}) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  emulator::IssueCopy(shared, global, kBytes, valid ? kBytes : 0, where);
}
inline void CpAsyncCommit() { emulator::CommitCopies(); }
template <int kInFlight>
void CpAsyncWait() {
  emulator::WaitCopies(kInFlight);
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
  constexpr auto kType =
      std::is_same_v<T, Bf16> ? emulator::MatrixType::kBf16 : emulator::MatrixType::kF16;
  emulator::MultiplyTile(c, a, b0, b1, kType, where);
}

// --- Between warps and between kernels

inline void NamedBarrier(int id, int num_threads, emulator::Where where = {}) {
  emulator::SyncNamed(id, num_threads, where);
}

// Kernels run one after another here.
inline void GridDependencyWait() {}
inline void GridDependencyLaunch() {}

}  // namespace quire::kernels::cuda
