#pragma once

// Reads the packed form of weights (packed_weight.h) in a kernel.
//
// A weight is scale * (code - offset) + minimum in float32, with the bits that Dequantize
// (kernels/quant/dequantize.h) gives. A code becomes a float without a conversion, which is slow:
// its bits are put into the mantissa of a power of two B, which makes B + code. Then either of
//   fma(scale, B + code, -scale * (B + offset))     exact, if scale * (B + offset) is
//   fma(scale, (B + code) - B, minimum)             rounded once
// is the weight. An infinite scale gives NaN.
//
// E4m3 has no offset and no minimum: its codes are small floats (ScaledNumbers).
//
// ScaledLane saves the subtraction where bf16 is wanted. The bits of a code alone are a subnormal
// number, code * 2^(first bit - 149), which an fma multiplies as fast as any other. The power of
// two goes into the scale, as far as the range of float32 allows: the weight is 2^-36 of what it
// should be. This rounds to bf16 as the weight does, because bf16 has the exponents of float32.

#include <bit>
#include <type_traits>

#include "kernels/cuda/device/primitives.cuh"
#include "kernels/cuda/product/packed_weight.h"

namespace quire::kernels::cuda {

// The codes and scales of a tile that one lane holds: of row lane / 4, and of the row 8 below.
template <WeightType kType>
struct LaneWeights {
  static constexpr int kWords = (PackedFormatOf<kType>::kCodeBits + 1) / 2;
  uint32_t codes[2][kWords];
  float scale[2], minimum[2];  // `minimum` is set only if the type has one
};

// Returns a float whose value is B + (the kBits bits of `word` from kFirst on), where B is
// FieldBase(kFirst).
template <int kFirst, int kBits>
__device__ __forceinline__ float FieldAsFloat(uint32_t word) {
  constexpr uint32_t kMask = ((1u << kBits) - 1) << kFirst;
  constexpr uint32_t kExponent = (127u + 23 - kFirst) << 23;
  return std::bit_cast<float>(AndOr(word, kMask, kExponent));
}
template <int kFirst>
constexpr float FieldBase() {
  return static_cast<float>(1 << (23 - kFirst));
}

// Returns an integer of kBits bits in `word` as a float.
template <int kFirst, int kBits>
__device__ __forceinline__ float IntegerAsFloat(uint32_t word) {
  return FieldAsFloat<kFirst, kBits>(word) - FieldBase<kFirst>();
}
__device__ __forceinline__ float HalfAsFloat(uint32_t word, int half) {
  return ToFloat(F16{static_cast<uint16_t>(half == 0 ? word & 0xffff : word >> 16)});
}

// Reads what `lane` holds of the tile at `tile`, whose header is at `header`, from shared or global
// memory.
template <WeightType kType>
__device__ __forceinline__ void LoadLane(const uint8_t* tile, const uint8_t* header, int lane,
                                         LaneWeights<kType>& out) {
  using Format = PackedFormatOf<kType>;
  const uint4 first = *reinterpret_cast<const uint4*>(tile + lane * 16);
  if constexpr (Format::kCodeBits == 8) {
    const uint4 second = *reinterpret_cast<const uint4*>(tile + 512 + lane * 16);
    const uint4 rows[2] = {first, second};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      out.codes[half][0] = rows[half].x;
      out.codes[half][1] = rows[half].y;
      out.codes[half][2] = rows[half].z;
      out.codes[half][3] = rows[half].w;
    }
  } else {
    out.codes[0][0] = first.x;
    out.codes[0][1] = first.y;
    out.codes[1][0] = first.z;
    out.codes[1][1] = first.w;
    if constexpr (Format::kCodeBits == 5) {
      const uint32_t third = *reinterpret_cast<const uint32_t*>(tile + 512 + lane * 4);
      out.codes[0][2] = third & 0xffff;
      out.codes[1][2] = third >> 16;
    }
    if constexpr (Format::kCodeBits == 6) {
      const uint2 third = *reinterpret_cast<const uint2*>(tile + 512 + lane * 8);
      out.codes[0][2] = third.x;
      out.codes[1][2] = third.y;
    }
  }
  const uint8_t* const scales = tile + Format::kCodeBytes;
  if constexpr (Format::kIsE4M3) {
    const uint2 of_rows = *reinterpret_cast<const uint2*>(scales + lane / 4 * 8);
    out.scale[0] = std::bit_cast<float>(of_rows.x);
    out.scale[1] = std::bit_cast<float>(of_rows.y);
  } else if constexpr (Format::kSuper && Format::kMinimum) {
    const uint32_t factors = *reinterpret_cast<const uint32_t*>(scales + lane / 2 * 4);
    const uint2 super = *reinterpret_cast<const uint2*>(header + lane / 4 * 8);
    const uint32_t of_rows[2] = {super.x, super.y};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t two = factors >> (16 * half);
      out.scale[half] = HalfAsFloat(of_rows[half], 0) * IntegerAsFloat<0, 8>(two);
      out.minimum[half] = -(HalfAsFloat(of_rows[half], 1) * IntegerAsFloat<8, 8>(two));
    }
  } else if constexpr (Format::kSuper) {
    // A flipped top bit adds 128 to a signed byte.
    const uint32_t factors =
        (*reinterpret_cast<const uint32_t*>(scales + lane / 2 * 4) ^ 0x80808080u) >>
        (lane % 2 * 16);
    const uint32_t super = *reinterpret_cast<const uint32_t*>(header + lane / 4 * 4);
    out.scale[0] = HalfAsFloat(super, 0) * (IntegerAsFloat<0, 8>(factors) - 128.0f);
    out.scale[1] = HalfAsFloat(super, 1) * (IntegerAsFloat<8, 8>(factors) - 128.0f);
  } else if constexpr (Format::kMinimum) {
    const uint2 pairs = *reinterpret_cast<const uint2*>(scales + lane / 2 * 8);
    const uint32_t of_rows[2] = {pairs.x, pairs.y};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      out.scale[half] = HalfAsFloat(of_rows[half], 0);
      out.minimum[half] = HalfAsFloat(of_rows[half], 1);
    }
  } else {
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(scales + lane / 2 * 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) out.scale[half] = HalfAsFloat(pair, half);
  }
}

// Sets out[i] to f<first bit>(word) for each of the lane's 16 codes of a row, where the code is the
// kCodeBits bits of `word` from the first bit on.
template <int kCodeBits, int kWords, typename F>
__device__ __forceinline__ void ForEachCode(const uint32_t (&words)[kWords], F f,
                                            float (&out)[kLaneCols]) {
  if constexpr (kCodeBits == 4) {
    // The scale of Q4_0 has 11 bits. B is at most 2^15, so B + 8 has at most 13.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      out[i * 8 + 0] = f.template operator()<12>(words[i] << 12);
      out[i * 8 + 1] = f.template operator()<16>(words[i] << 12);
      out[i * 8 + 2] = f.template operator()<8>(words[i]);
      out[i * 8 + 3] = f.template operator()<12>(words[i]);
      out[i * 8 + 4] = f.template operator()<16>(words[i]);
      out[i * 8 + 5] = f.template operator()<8>(words[i] >> 12);
      out[i * 8 + 6] = f.template operator()<12>(words[i] >> 12);
      out[i * 8 + 7] = f.template operator()<16>(words[i] >> 12);
    }
  } else if constexpr (kCodeBits == 5) {
    // The scale of Q5_0 has 11 bits. B is at most 2^13, so B + 16 has at most 10.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      out[i * 6 + 0] = f.template operator()<10>(words[i] << 10);
      out[i * 6 + 1] = f.template operator()<15>(words[i] << 10);
      out[i * 6 + 2] = f.template operator()<10>(words[i]);
      out[i * 6 + 3] = f.template operator()<15>(words[i]);
      out[i * 6 + 4] = f.template operator()<10>(words[i] >> 10);
      out[i * 6 + 5] = f.template operator()<15>(words[i] >> 10);
    }
    out[12] = f.template operator()<10>(words[2] << 10);
    out[13] = f.template operator()<15>(words[2] << 10);
    out[14] = f.template operator()<10>(words[2]);
    const uint32_t last = (words[0] >> 30) | (words[1] >> 30) << 2 | (words[2] >> 15) << 4;
    out[15] = f.template operator()<10>(last << 10);
  } else if constexpr (kCodeBits == 8) {
    // A scale has 11 bits, and 2^15 + 128 has 9.
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[i * 4 + 0] = f.template operator()<8>(words[i] << 8);
      out[i * 4 + 1] = f.template operator()<8>(words[i]);
      out[i * 4 + 2] = f.template operator()<8>(words[i] >> 8);
      out[i * 4 + 3] = f.template operator()<8>(words[i] >> 16);
    }
  } else {
    // A scale has 18 bits, and 2^10 + 32 has 6.
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      out[i * 5 + 0] = f.template operator()<13>(words[i] << 13);
      out[i * 5 + 1] = f.template operator()<13>(words[i] << 7);
      out[i * 5 + 2] = f.template operator()<13>(words[i] << 1);
      out[i * 5 + 3] = f.template operator()<13>(words[i] >> 5);
      out[i * 5 + 4] = f.template operator()<13>(words[i] >> 11);
    }
    const uint32_t last = (words[0] >> 30) | (words[1] >> 30) << 2 | (words[2] >> 30) << 4;
    out[15] = f.template operator()<13>(last << 13);
  }
}

// Writes the numbers of 16 codes of e4m3, times `scale`. The bits of a code are those of a float32
// that is 2^-120 times as large, also where it is subnormal. The power of two goes into the scale,
// whose range is limited for this (weight_view.h), so the product is rounded once.
__device__ __forceinline__ void ScaledNumbers(const uint32_t (&words)[4], float scale,
                                              float (&numbers)[kLaneCols]) {
  const float moved = scale * 0x1p120f;
#pragma unroll
  for (int i = 0; i < kLaneCols; ++i) {
    // The shift to the right copies the sign, which leaves the exponent's top four bits free.
    const auto top = static_cast<int32_t>(words[i / 4] << (24 - i % 4 * 8));
    numbers[i] = std::bit_cast<float>(static_cast<uint32_t>(top >> 4) & 0x87f00000u) * moved;
  }
}

// Writes the 16 weights of one of the lane's rows as float32. `half` is a constant where this is
// inlined, or `lane` would be in local memory.
template <WeightType kType>
__device__ __forceinline__ void DequantizeLane(const LaneWeights<kType>& lane, int half,
                                               float (&weights)[kLaneCols]) {
  using Format = PackedFormatOf<kType>;
  if constexpr (Format::kIsE4M3) {
    ScaledNumbers(lane.codes[half], lane.scale[half], weights);
    return;
  }
  const float scale = lane.scale[half];
  const auto weight = [&]<int kFirst>(uint32_t word) {
    if constexpr (Format::kMinimum) {
      static_assert(Format::kOffset == 0);
      return fmaf(scale, IntegerAsFloat<kFirst, Format::kCodeBits>(word), lane.minimum[half]);
    } else {
      constexpr float kShift = -(FieldBase<kFirst>() + static_cast<float>(Format::kOffset));
      return fmaf(scale, FieldAsFloat<kFirst, Format::kCodeBits>(word), scale * kShift);
    }
  };
  ForEachCode<Format::kCodeBits>(lane.codes[half], weight, weights);
}

// The factor of the weights that ScaledLane writes.
template <typename T, WeightType kType>
inline constexpr float kLaneScale =
    std::is_same_v<T, Bf16>&& PackedFormatOf<kType>::kMinimum ? 0x1p-36f : 1.0f;

// The same for weights that become T: times kLaneScale<T, kType>.
template <typename T, WeightType kType>
__device__ __forceinline__ void ScaledLane(const LaneWeights<kType>& lane, int half,
                                           float (&weights)[kLaneCols]) {
  using Format = PackedFormatOf<kType>;
  if constexpr (kLaneScale<T, kType> == 1.0f) {
    DequantizeLane(lane, half, weights);
  } else {
    // The scale is below 2^22, so its product with 2^(149 - 8 - 36) is below 2^127.
    const float scale = lane.scale[half], minimum = lane.minimum[half] * 0x1p-36f;
    const auto weight = [&]<int kFirst>(uint32_t word) {
      constexpr uint32_t kMask = ((1u << Format::kCodeBits) - 1) << kFirst;
      constexpr float kUnit = 0x1p105f / static_cast<float>(1 << (kFirst - 8));
      return fmaf(std::bit_cast<float>(word & kMask), scale * kUnit, minimum);
    };
    ForEachCode<Format::kCodeBits>(lane.codes[half], weight, weights);
  }
}

}  // namespace quire::kernels::cuda
