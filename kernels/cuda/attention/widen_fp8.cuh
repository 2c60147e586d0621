#pragma once

// Elements of E4M3 become elements of T, as attention over a cache of E4M3 multiplies them.
//
// Every number of e4m3 is one of T. The bits of a code, moved to their places in a T, are the
// number times 2^-120 in Bf16 and times 2^-8 in F16. So elements need no arithmetic but a power of
// two, and a factor of the scores and of the output makes up for what is left of it
// (E4M3In<T>::kFactor). Numbers below the normal ones of e4m3 become subnormal numbers of T, which
// tensor cores multiply exactly (doi:10.7717/peerj-cs.330).

#include <bit>
#include <type_traits>

#include "kernels/cuda/device/primitives.cuh"

namespace quire::kernels::cuda {

// How elements of E4M3 become elements of T.
template <typename T>
struct E4M3In;
template <>
struct E4M3In<Bf16> {
  static constexpr int kShift = 4;
  static constexpr uint32_t kMask = 0x87f087f0;
  static constexpr uint32_t kNan = 0x07f0;  // the bits of the code, moved
  // One factor of each product is multiplied by this, so that sums of products are normal float32.
  static constexpr float kRaised = 0x1p64f;
  static constexpr float kFactor = 0x1p56f;  // 2^120 / kRaised
};
template <>
struct E4M3In<F16> {
  static constexpr int kShift = 7;
  static constexpr uint32_t kMask = 0xbf80bf80;
  static constexpr uint32_t kNan = 0x3f80;
  static constexpr float kRaised = 1.0f;
  static constexpr float kFactor = 0x1p8f;
};

// Returns two elements of a word, as elements of T divided by 2^120 or 2^8.
template <typename T, int kLow, int kHigh>
__device__ __forceinline__ uint32_t WidenPair(uint32_t word) {
  return (SignExtend<kLow, kHigh>(word) << E4M3In<T>::kShift) & E4M3In<T>::kMask;
}

// Looks for codes of NaN, whose bits would become 480. All bits of the code but the sign are 1, so
// the addition of 1 changes the sign.
class NanFinder {
 public:
  __device__ __forceinline__ void Look(uint32_t word) { flipped_ |= (word + 0x01010101) ^ word; }
  // Returns true if any of the words had one.
  __device__ __forceinline__ bool found() const { return (flipped_ & 0x80808080) != 0; }

 private:
  uint32_t flipped_ = 0;  // only bits 7 of bytes count
};

// Returns `pair` with NaN in the place of each code of NaN that WidenPair has moved.
template <typename T>
__device__ __forceinline__ uint32_t RestoreNan(uint32_t pair) {
  constexpr uint32_t kNan = E4M3In<T>::kNan;
  if ((pair & 0x7fff) == kNan) pair |= 0x7fff;
  if ((pair >> 16 & 0x7fff) == kNan) pair |= 0x7fff0000;
  return pair;
}

// Returns 8 elements in their order, as elements of T divided by E4M3In<T>::kFactor. Only with
// kKeepsNan, NaN stays NaN.
template <typename T, bool kKeepsNan>
__device__ __forceinline__ uint4 Widen8(uint32_t first, uint32_t second) {
  uint32_t pairs[4] = {WidenPair<T, 0, 1>(first), WidenPair<T, 2, 3>(first),
                       WidenPair<T, 0, 1>(second), WidenPair<T, 2, 3>(second)};
#pragma unroll
  for (uint32_t& pair : pairs) {
    if constexpr (kKeepsNan) pair = RestoreNan<T>(pair);
    if constexpr (std::is_same_v<T, Bf16>) {
      constexpr uint32_t kRaised = std::bit_cast<uint32_t>(E4M3In<T>::kRaised) >> 16;
      pair = MultiplyBf16(pair, kRaised << 16 | kRaised);
    }
  }
  return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

// Widens kCount chunks of 16 codes, of which codes[i * stride] is the i-th. place(i, h) is where
// half h of it goes, as 8 elements of T. NaN stays NaN.
template <typename T, int kCount, typename Place>
__device__ __forceinline__ void WidenChunks(const uint4* codes, int stride, const Place& place) {
  NanFinder nan;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint4 chunk = codes[i * stride];
    for (const uint32_t word : {chunk.x, chunk.y, chunk.z, chunk.w}) nan.Look(word);
    StoreVector(place(i, 0), Widen8<T, false>(chunk.x, chunk.y));
    StoreVector(place(i, 1), Widen8<T, false>(chunk.z, chunk.w));
  }
  if (!nan.found()) [[likely]]
    return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint4 chunk = codes[i * stride];
    StoreVector(place(i, 0), Widen8<T, true>(chunk.x, chunk.y));
    StoreVector(place(i, 1), Widen8<T, true>(chunk.z, chunk.w));
  }
}

}  // namespace quire::kernels::cuda
