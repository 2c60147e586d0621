#include "kernels/cuda/product/pack_weight.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/product/packed_weight.h"
#include "kernels/quant/weight_blocks.h"

namespace quire::kernels::cuda {
namespace {

void StoreU16(uint16_t value, uint8_t* to) { std::memcpy(to, &value, sizeof(value)); }
void StoreU32(uint32_t value, uint8_t* to) { std::memcpy(to, &value, sizeof(value)); }

// Writes the 16 codes of one lane and row. `half` is 0 for row lane / 4, 1 for the row 8 below.
template <int kCodeBits>
void PackCodes(const uint8_t* codes, int lane, int half, uint8_t* tile) {
  if constexpr (kCodeBits == 8) {
    std::memcpy(tile + half * 512 + lane * 16, codes, kLaneCols);
  } else if constexpr (kCodeBits == 4) {
    uint32_t words[2] = {};
    for (int c = 0; c < kLaneCols; ++c) words[c / 8] |= uint32_t{codes[c]} << (4 * (c % 8));
    std::memcpy(tile + lane * 16 + half * 8, words, sizeof(words));
  } else if constexpr (kCodeBits == 5) {
    uint32_t words[3] = {};
    for (int c = 0; c < 15; ++c) words[c / 6] |= uint32_t{codes[c]} << (5 * (c % 6));
    for (int i = 0; i < 2; ++i) words[i] |= uint32_t{codes[15]} >> (2 * i) << 30;
    words[2] |= uint32_t{codes[15]} >> 4 << 15;
    std::memcpy(tile + lane * 16 + half * 8, words, 8);
    StoreU16(static_cast<uint16_t>(words[2]), tile + 512 + lane * 4 + half * 2);
  } else {
    uint32_t words[3] = {};
    for (int c = 0; c < 15; ++c) words[c / 5] |= uint32_t{codes[c]} << (6 * (c % 5));
    for (int i = 0; i < 3; ++i) words[i] |= uint32_t{codes[15]} >> (2 * i) << 30;
    std::memcpy(tile + lane * 16 + half * 8, words, 8);
    StoreU32(words[2], tile + 512 + lane * 8 + half * 4);
  }
}

// Writes the scales of 32 columns of one row. `pair` is the index of the pair of lanes.
template <typename Format>
void PackScales(const DecodedBlock& block, int pair, int half, uint8_t* scales) {
  if constexpr (Format::kSuper && Format::kMinimum) {
    scales[pair * 4 + half * 2] = static_cast<uint8_t>(block.scales[0]);
    scales[pair * 4 + half * 2 + 1] = static_cast<uint8_t>(block.minimum_scale);
  } else if constexpr (Format::kSuper) {
    for (int i = 0; i < 2; ++i) {
      scales[pair * 4 + i * 2 + half] = static_cast<uint8_t>(block.scales[i]);
    }
  } else if constexpr (Format::kMinimum) {
    StoreU16(block.d, scales + pair * 8 + half * 4);
    StoreU16(block.m, scales + pair * 8 + half * 4 + 2);
  } else {
    StoreU16(block.d, scales + pair * 4 + half * 2);
  }
}

template <typename Format>
void PackHeader(const DecodedBlock& block, int row, int half, uint8_t* header) {
  if constexpr (Format::kMinimum) {
    StoreU16(block.d, header + row * 8 + half * 4);
    StoreU16(block.m, header + row * 8 + half * 4 + 2);
  } else {
    StoreU16(block.d, header + row * 4 + half * 2);
  }
}

// Writes one row of e4m3. `row` is the row of the half.
template <typename Format>
void PackScaledRow(const uint8_t* from, int64_t cols, int row, int half, uint8_t* group) {
  for (int64_t index = 0; index < cols / kScaledBlock; ++index, from += kScaledBlockBytes) {
    static_assert(kScaledBlock == kPackedTileCols);
    uint8_t* const tile = group + Format::TileAt(index);
    std::memcpy(tile + Format::kCodeBytes + row * 8 + half * 4, from, sizeof(float));
    for (int i = 0; i < 4; ++i) {
      PackCodes<Format::kCodeBits>(from + sizeof(float) + i * kLaneCols, row * 4 + i, half, tile);
    }
  }
}

template <WeightType kType>
void PackGroupOf(const WeightView& weight, int64_t group, uint8_t* out) {
  using Format = PackedFormatOf<kType>;
  std::memset(out, 0, static_cast<size_t>(Format::GroupBytes(weight.cols)));
  const WeightTypeTraits& traits = Traits(kType);
  const int64_t row_bytes = weight.cols / traits.block_elements * traits.block_bytes;
  const int64_t first_row = group * kGroupRows;
  const int64_t num_rows = std::min<int64_t>(kGroupRows, weight.rows - first_row);
  for (int64_t row = 0; row < num_rows; ++row) {
    const auto* const from =
        reinterpret_cast<const uint8_t*>(weight.bytes.data()) + (first_row + row) * row_bytes;
    const int row_in_half = static_cast<int>(row % 8), half = static_cast<int>(row / 8);
    if constexpr (Format::kIsE4M3) {
      PackScaledRow<Format>(from, weight.cols, row_in_half, half, out);
      continue;
    }
    for (int64_t index = 0; index < weight.cols / kSubBlock; ++index) {
      DecodedBlock block;
      DecodeBlock(kType, from, index, &block);
      uint8_t* const tile = out + Format::TileAt(index / 2);
      const int pair = row_in_half * 2 + static_cast<int>(index % 2);
      for (int i = 0; i < 2; ++i) {
        PackCodes<Format::kCodeBits>(block.codes + i * kLaneCols, pair * 2 + i, half, tile);
      }
      PackScales<Format>(block, pair, half, tile + Format::kCodeBytes);
      if constexpr (Format::kSuper) {
        PackHeader<Format>(block, row_in_half, half, out + Format::HeaderAt(index / 2));
      }
    }
  }
}

}  // namespace

void PackGroup(const WeightView& weight, int64_t group, std::byte* out) {
  WithPackedType(
      weight.type,
      [&](auto constant) {
        PackGroupOf<decltype(constant)::value>(weight, group, reinterpret_cast<uint8_t*>(out));
        return true;
      },
      false);
}

}  // namespace quire::kernels::cuda
