#pragma once

// The packed form of quantised weights on a device. Nothing is rounded: the codes and scales are
// those of the file (kernels/quant/weight_blocks.h; those of e4m3: weight_view.h), in another
// order. Plain C++, for host and device.
//
// A group is 16 rows with all their columns. A tile is 64 columns of a group. The tiles of a group
// follow one another, and so do the groups. Rows and columns past the end are zero.
//
// The order inside a tile is that of the fragments of mma.m16n8k16 (primitives.cuh), so that a lane
// reads what it multiplies in whole vectors, without a shuffle. Lane l holds rows l / 4 and
// l / 4 + 8, and of each row the 16 columns from 16 * (l % 4) on. The four products of a tile take
// four of these columns each: a product may take any columns, if its activations are the same
// ones. The 16 columns of a lane share a scale in every type.
//
// A tile is, one after another:
//   codes   4 bits: 16 bytes a lane: row l / 4, then row l / 4 + 8. Column c of the 16 is nibble
//                   c % 8 of 32-bit word c / 8.
//           8 bits: 16 bytes a lane for row l / 4, one for each column; after those of all lanes,
//                   the same for row l / 4 + 8. A code of Q8_0 is unsigned: 128 is zero.
//           5 bits: two 32-bit words and a 16-bit word a row. Column c < 15 has five bits of word
//                   c / 6, from bit 5 * (c % 6) on. The top two bits of words 0 and 1 and the top
//                   bit of word 2 are column 15, low bits first. 16 bytes a lane: words 0 and 1 of
//                   row l / 4, then of row l / 4 + 8. After those of all lanes, 4 bytes a lane:
//                   word 2 of both rows.
//           6 bits: three 32-bit words a row. Column c < 15 has six bits of word c / 5, from bit
//                   6 * (c % 5) on. The top two bits of words 0, 1 and 2 are column 15, low bits
//                   first. 16 bytes a lane: words 0 and 1 of row l / 4, then of row l / 4 + 8.
//                   After those of all lanes, 8 bytes a lane: word 2 of both rows.
//   scales  Two neighbouring lanes share 32 columns. For each such pair, for row l / 4 and then row
//           l / 4 + 8:
//             Q4_0, Q5_0, Q8_0: f16 scale     Q4_1, Q5_1: f16 scale, f16 minimum
//             Q4_K, Q5_K: u8 scale, u8 minimum, as factors of those of 256 columns
//             Q6_K: s8 scale of the even lane; after both rows, those of the odd lane
//           Scaled e4m3: the four lanes of a row share the tile's columns. For each r from 0 to 7,
//           the f32 scale of row r, then that of row r + 8.
//
// K-quants have a header before every four tiles. For each r from 0 to 7, for row r and then row
// r + 8:
//   Q4_K, Q5_K: f16 scale, f16 minimum       Q6_K: f16 scale

#include <cstdint>

#include "kernels/quant/weight_view.h"

namespace quire::kernels::cuda {

inline constexpr int kGroupRows = 16;
inline constexpr int kPackedTileCols = 64;
inline constexpr int kLaneCols = 16;  // columns of a tile that one lane holds

// A weight is scale * (code - kOffset) + minimum.
template <int kCodeBits_, int kOffset_, bool kMinimum_, bool kSuper_>
struct PackedFormat {
  static constexpr int kCodeBits = kCodeBits_;
  static constexpr int kOffset = kOffset_;
  static constexpr bool kMinimum = kMinimum_;
  static constexpr bool kSuper = kSuper_;  // a K-quant
  static constexpr bool kIsE4M3 = false;  // a weight is scale * the number that the code stands for

  static constexpr int kCodeBytes = kGroupRows * kPackedTileCols * kCodeBits / 8;
  static constexpr int kScaleBytes = kMinimum && !kSuper ? 128 : 64;
  static constexpr int kTileBytes = kCodeBytes + kScaleBytes;
  static constexpr int kTilesOfHeader = 4;
  static constexpr int kHeaderBytes = kSuper ? kGroupRows * (kMinimum ? 4 : 2) : 0;
  static_assert(kTileBytes % 16 == 0 && kHeaderBytes % 16 == 0);

  static constexpr int64_t NumTiles(int64_t cols) {
    return (cols + kPackedTileCols - 1) / kPackedTileCols;
  }
  // The byte offsets in a group of a tile and of the header that it needs.
  static constexpr int64_t HeaderAt(int64_t tile) {
    return tile / kTilesOfHeader * (kHeaderBytes + kTilesOfHeader * kTileBytes);
  }
  static constexpr int64_t TileAt(int64_t tile) {
    return kSuper ? HeaderAt(tile) + kHeaderBytes + tile % kTilesOfHeader * kTileBytes
                  : tile * kTileBytes;
  }
  // Columns of a K-quant are a multiple of 256, so its last header has all four tiles.
  static constexpr int64_t GroupBytes(int64_t cols) {
    return TileAt(NumTiles(cols)) - kHeaderBytes;
  }
};

template <WeightType kType>
struct PackedFormatOf;
template <>
struct PackedFormatOf<WeightType::kQ4_0> : PackedFormat<4, 8, false, false> {};
template <>
struct PackedFormatOf<WeightType::kQ4_1> : PackedFormat<4, 0, true, false> {};
template <>
struct PackedFormatOf<WeightType::kQ5_0> : PackedFormat<5, 16, false, false> {};
template <>
struct PackedFormatOf<WeightType::kQ5_1> : PackedFormat<5, 0, true, false> {};
template <>
struct PackedFormatOf<WeightType::kQ8_0> : PackedFormat<8, 128, false, false> {};
template <>
struct PackedFormatOf<WeightType::kQ4_K> : PackedFormat<4, 0, true, true> {};
template <>
struct PackedFormatOf<WeightType::kQ5_K> : PackedFormat<5, 0, true, true> {};
template <>
struct PackedFormatOf<WeightType::kQ6_K> : PackedFormat<6, 32, false, true> {};
template <>
struct PackedFormatOf<WeightType::kF8E4M3Scaled> : PackedFormat<8, 0, false, false> {
  static constexpr bool kIsE4M3 = true;
};

template <WeightType kType>
struct WeightTypeConstant {
  static constexpr WeightType value = kType;
};

// Returns f(WeightTypeConstant of `type`), or `otherwise` if `type` has no packed form.
template <typename Result, typename F>
constexpr Result WithPackedType(WeightType type, F f, Result otherwise) {
  switch (type) {
    case WeightType::kQ4_0:
      return f(WeightTypeConstant<WeightType::kQ4_0>{});
    case WeightType::kQ4_1:
      return f(WeightTypeConstant<WeightType::kQ4_1>{});
    case WeightType::kQ5_0:
      return f(WeightTypeConstant<WeightType::kQ5_0>{});
    case WeightType::kQ5_1:
      return f(WeightTypeConstant<WeightType::kQ5_1>{});
    case WeightType::kQ8_0:
      return f(WeightTypeConstant<WeightType::kQ8_0>{});
    case WeightType::kQ4_K:
      return f(WeightTypeConstant<WeightType::kQ4_K>{});
    case WeightType::kQ5_K:
      return f(WeightTypeConstant<WeightType::kQ5_K>{});
    case WeightType::kQ6_K:
      return f(WeightTypeConstant<WeightType::kQ6_K>{});
    case WeightType::kF8E4M3Scaled:
      return f(WeightTypeConstant<WeightType::kF8E4M3Scaled>{});
    default:
      return otherwise;
  }
}

// Returns the bytes of a packed group of `cols` columns, or 0 if `type` has no packed form.
constexpr int64_t PackedGroupBytes(WeightType type, int64_t cols) {
  return WithPackedType(
      type,
      [&](auto constant) { return PackedFormatOf<decltype(constant)::value>::GroupBytes(cols); },
      int64_t{0});
}
inline int64_t NumGroups(int64_t rows) { return (rows + kGroupRows - 1) / kGroupRows; }

}  // namespace quire::kernels::cuda
