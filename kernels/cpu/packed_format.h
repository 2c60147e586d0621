#pragma once

// The packed form of weights. The rows of a weight are its outputs. A group has 16 rows,
// interleaved so that one vector holds the same k of all 16 rows. A group holds all K values of its
// rows. A part of a stacked weight is a run of groups.
//
//   float types    [K][16] in the type of the file, e4m3 without scales too
//   scaled e4m3    per 64 k: f32 scale[16], then codes [64][16]
//   4-bit codes    per 32 k: 4 vectors of 64 bytes; vector p holds, for each lane, codes 4p..4p+3
//                  in low nibbles and 16+4p..16+4p+3 in high nibbles
//   8-bit codes    per 32 k: 8 vectors of 64 bytes; vector p holds codes 4p..4p+3 of each lane
//                  (Q5, Q6 and Q8 codes: one byte each, unsigned)
//   scales         after the codes of a block: f16 d[16], then f16 m[16] if the type has minimums;
//                  K-quants: f16 d[16] (and f16 m[16]) before the 8 blocks of 256 k, and after each
//                  block's codes u8 scale[16], u8 minimum[16] (Q6_K: s8 scale[2][16])
//
// Rows past the end of a part are zero. Nothing is rounded: the bits of the file are kept.

#include <cstdint>

#include "kernels/quant/weight_view.h"

namespace quire::kernels::cpu {

// The bytes in a group of a block of scaled e4m3, and of the scales before its codes.
inline constexpr int64_t kScalesOfBlockBytes = 16 * sizeof(float);
inline constexpr int64_t kScaledGroupBytes = kScalesOfBlockBytes + 16 * kScaledBlock;

template <int kCodeBits_, int kMaxCode_, int kOffset_, bool kMinimum_, bool kSuper_, int kParts_>
struct QuantFormat {
  static constexpr int kCodeBits = kCodeBits_;  // as packed
  static constexpr int kMaxCode = kMaxCode_;
  static constexpr int kOffset = kOffset_;  // a power of two, or 0
  static constexpr bool kMinimum = kMinimum_;
  static constexpr bool kSuper = kSuper_;  // a K-quant
  static constexpr int kParts = kParts_;   // scales per 32 k
  static constexpr int kCodeBytes = kCodeBits * 64;
  static constexpr int kHeaderBytes = kSuper ? (kMinimum ? 64 : 32) : 0;  // before every 8 blocks
  static constexpr int kScaleBytes = kSuper ? 32 : (kMinimum ? 64 : 32);
  static constexpr int kBlockBytes = kCodeBytes + kScaleBytes;

  [[gnu::always_inline]] static constexpr int64_t GroupBytes(int64_t cols) {
    return cols / 32 * kBlockBytes + (kSuper ? cols / 256 * kHeaderBytes : 0);
  }
  // BlockAt returns the byte offset of block `index` of 32 k in a group. HeaderAt returns the byte
  // offset of the header of the super-block that contains block `index`.
  [[gnu::always_inline]] static constexpr int64_t BlockAt(int64_t index) {
    return kSuper ? HeaderAt(index) + kHeaderBytes + index % 8 * kBlockBytes : index * kBlockBytes;
  }
  [[gnu::always_inline]] static constexpr int64_t HeaderAt(int64_t index) {
    return index / 8 * (kHeaderBytes + 8 * kBlockBytes);
  }
};

using Q4_0Format = QuantFormat<4, 15, 8, false, false, 1>;
using Q4_1Format = QuantFormat<4, 15, 0, true, false, 1>;
using Q5_0Format = QuantFormat<8, 31, 16, false, false, 1>;
using Q5_1Format = QuantFormat<8, 31, 0, true, false, 1>;
using Q8_0Format = QuantFormat<8, 255, 128, false, false, 1>;
using Q4_KFormat = QuantFormat<4, 15, 0, true, true, 1>;
using Q5_KFormat = QuantFormat<8, 31, 0, true, true, 1>;
using Q6_KFormat = QuantFormat<8, 63, 32, false, true, 2>;

}  // namespace quire::kernels::cpu
