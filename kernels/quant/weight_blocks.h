#pragma once

// Reads and writes the ggml block formats, one block at a time. Dequantize and the packing of the
// CPU backend read with these functions, and Quantize writes with them. So the place of every bit
// is defined once.
//
// Every format is  weight = scale * (code - offset) + minimum  with an unsigned code, over
// sub-blocks of 32 weights (16 for Q6_K). In a K-quant, `scale` and `minimum` are each a product of
// an f16 with 11 significant bits and an integer of at most 8 bits. These products are exact in
// float32.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/quant/float16.h"
#include "kernels/quant/weight_view.h"

namespace quire::kernels {

constexpr int kSubBlock = 32;  // weights of a ggml block that are decoded at once

// 32 consecutive weights of one row.
struct DecodedBlock {
  uint8_t codes[kSubBlock];
  uint16_t d = 0;          // f16: the scale, or the super-block's scale of scales
  uint16_t m = 0;          // f16: the minimum, or the super-block's scale of minimums
  int scales[2] = {1, 1};  // K-quants: factors of d for weights 0..15 and 16..31
  int minimum_scale = 0;   // K-quants: factor of m; the product is subtracted

  int offset = 0;  // subtracted from every code
  bool k_quant = false;

  float scale(int half) const { return F16ToF32(d) * static_cast<float>(scales[half]); }
  float minimum() const {
    return k_quant ? -(F16ToF32(m) * static_cast<float>(minimum_scale)) : F16ToF32(m);
  }
};

namespace weight_blocks_internal {

inline uint16_t LoadU16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}
inline uint32_t LoadU32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// Decodes the codes of Q4_x and Q5_x. Low nibbles are weights 0..15, high nibbles are weights
// 16..31. Bit i of `high` is the fifth bit of weight i.
inline void DecodeNibbles(const uint8_t* codes, uint32_t high, uint8_t* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<uint8_t>((codes[i] & 15) | (((high >> i) & 1) << 4));
    out[i + 16] = static_cast<uint8_t>((codes[i] >> 4) | (((high >> (i + 16)) & 1) << 4));
  }
}

// Unpacks the 6-bit scale and minimum of sub-block j of Q4_K and Q5_K. `packed` has 12 bytes.
inline void UnpackScales(const uint8_t* packed, int j, int* scale, int* minimum) {
  if (j < 4) {
    *scale = packed[j] & 63;
    *minimum = packed[j + 4] & 63;
  } else {
    *scale = (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4);
    *minimum = (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4);
  }
}

inline void StoreU16(uint16_t value, uint8_t* p) { std::memcpy(p, &value, sizeof(value)); }

// The inverse of DecodeNibbles. Returns the fifth bits of the 32 codes.
inline uint32_t EncodeNibbles(const uint8_t* in, uint8_t* codes) {
  uint32_t high = 0;
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<uint8_t>((in[i] & 15) | (in[i + 16] << 4));
    high |= uint32_t{in[i]} >> 4 << i | uint32_t{in[i + 16]} >> 4 << (i + 16);
  }
  return high;
}

// The inverse of UnpackScales. `packed` must be zero before the first of the eight calls for a
// block.
inline void PackScales(int scale, int minimum, int j, uint8_t* packed) {
  if (j < 4) {
    packed[j] = static_cast<uint8_t>(packed[j] | scale);
    packed[j + 4] = static_cast<uint8_t>(packed[j + 4] | minimum);
  } else {
    packed[j + 4] = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
    packed[j - 4] = static_cast<uint8_t>(packed[j - 4] | scale >> 4 << 6);
    packed[j] = static_cast<uint8_t>(packed[j] | minimum >> 4 << 6);
  }
}

}  // namespace weight_blocks_internal

// Decodes weights [32 * index, 32 * index + 32) of a row, which is stored in blocks of a ggml
// type.
inline void DecodeBlock(WeightType type, const uint8_t* row, int64_t index, DecodedBlock* out) {
  using namespace weight_blocks_internal;  // NOLINT: names of this file
  *out = DecodedBlock();
  const int64_t j = index % 8;  // sub-block of a K-quant's 256 weights
  switch (type) {
    case WeightType::kQ4_0: {
      const uint8_t* block = row + index * 18;
      out->d = LoadU16(block);
      out->offset = 8;
      DecodeNibbles(block + 2, 0, out->codes);
      return;
    }
    case WeightType::kQ4_1: {
      const uint8_t* block = row + index * 20;
      out->d = LoadU16(block);
      out->m = LoadU16(block + 2);
      DecodeNibbles(block + 4, 0, out->codes);
      return;
    }
    case WeightType::kQ5_0: {
      const uint8_t* block = row + index * 22;
      out->d = LoadU16(block);
      out->offset = 16;
      DecodeNibbles(block + 6, LoadU32(block + 2), out->codes);
      return;
    }
    case WeightType::kQ5_1: {
      const uint8_t* block = row + index * 24;
      out->d = LoadU16(block);
      out->m = LoadU16(block + 2);
      DecodeNibbles(block + 8, LoadU32(block + 4), out->codes);
      return;
    }
    case WeightType::kQ8_0: {
      const uint8_t* block = row + index * 34;
      out->d = LoadU16(block);
      out->offset = 128;
      for (int i = 0; i < 32; ++i) out->codes[i] = static_cast<uint8_t>(block[2 + i] ^ 0x80);
      return;
    }
    case WeightType::kQ4_K:
    case WeightType::kQ5_K: {
      const bool five = type == WeightType::kQ5_K;
      const uint8_t* block = row + index / 8 * (five ? 176 : 144);
      out->k_quant = true;
      out->d = LoadU16(block);
      out->m = LoadU16(block + 2);
      UnpackScales(block + 4, static_cast<int>(j), &out->scales[0], &out->minimum_scale);
      out->scales[1] = out->scales[0];
      // In Q5_K, bit j of high[i] is the fifth bit of weight 32 * j + i.
      const uint8_t* high = block + 16;
      const uint8_t* low = block + (five ? 48 : 16) + j / 2 * 32;
      for (int i = 0; i < 32; ++i) {
        const int nibble = j % 2 == 0 ? low[i] & 15 : low[i] >> 4;
        const int fifth = five ? (high[i] >> j) & 1 : 0;
        out->codes[i] = static_cast<uint8_t>(nibble | (fifth << 4));
      }
      return;
    }
    case WeightType::kQ6_K: {
      const uint8_t* block = row + index / 8 * 210;
      // A block has two halves of 128 weights. In each half, four runs of 32 weights share 64 bytes
      // of low bits and 32 bytes of high bits.
      const int64_t half = j / 4, run = j % 4;
      const uint8_t* low = block + half * 64 + run % 2 * 32;
      const uint8_t* high = block + 128 + half * 32;
      out->k_quant = true;
      out->d = LoadU16(block + 208);
      out->offset = 32;
      for (int i = 0; i < 2; ++i) {
        out->scales[i] = static_cast<int8_t>(block[192 + j * 2 + i]);
      }
      for (int i = 0; i < 32; ++i) {
        const int nibble = run < 2 ? low[i] & 15 : low[i] >> 4;
        out->codes[i] = static_cast<uint8_t>(nibble | (((high[i] >> (2 * run)) & 3) << 4));
      }
      return;
    }
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
    case WeightType::kF8E4M3:
    case WeightType::kF8E4M3Scaled:
      return;
  }
}

// The inverse of DecodeBlock for the types that Quantize writes. All bytes of `row` must be zero
// before the first block is written. The eight calls for the 256 weights of a K-quant block must
// pass the same d and m.
inline void EncodeBlock(WeightType type, const DecodedBlock& in, int64_t index, uint8_t* row) {
  using namespace weight_blocks_internal;  // NOLINT: names of this file
  const int64_t j = index % 8;             // sub-block of a K-quant's 256 weights
  switch (type) {
    case WeightType::kQ4_0: {
      uint8_t* block = row + index * 18;
      StoreU16(in.d, block);
      EncodeNibbles(in.codes, block + 2);
      return;
    }
    case WeightType::kQ5_0: {
      uint8_t* block = row + index * 22;
      StoreU16(in.d, block);
      const uint32_t high = EncodeNibbles(in.codes, block + 6);
      std::memcpy(block + 2, &high, sizeof(high));
      return;
    }
    case WeightType::kQ8_0: {
      uint8_t* block = row + index * 34;
      StoreU16(in.d, block);
      for (int i = 0; i < 32; ++i) block[2 + i] = static_cast<uint8_t>(in.codes[i] ^ 0x80);
      return;
    }
    case WeightType::kQ4_K: {
      uint8_t* block = row + index / 8 * 144;
      StoreU16(in.d, block);
      StoreU16(in.m, block + 2);
      PackScales(in.scales[0], in.minimum_scale, static_cast<int>(j), block + 4);
      uint8_t* low = block + 16 + j / 2 * 32;
      for (int i = 0; i < 32; ++i) {
        low[i] = static_cast<uint8_t>(low[i] | in.codes[i] << (j % 2 * 4));
      }
      return;
    }
    case WeightType::kQ6_K: {
      uint8_t* block = row + index / 8 * 210;
      const int64_t half = j / 4, run = j % 4;  // as in DecodeBlock
      uint8_t* low = block + half * 64 + run % 2 * 32;
      uint8_t* high = block + 128 + half * 32;
      StoreU16(in.d, block + 208);
      for (int i = 0; i < 2; ++i) block[192 + j * 2 + i] = static_cast<uint8_t>(in.scales[i]);
      for (int i = 0; i < 32; ++i) {
        low[i] = static_cast<uint8_t>(low[i] | (in.codes[i] & 15) << (run / 2 * 4));
        high[i] = static_cast<uint8_t>(high[i] | in.codes[i] >> 4 << (2 * run));
      }
      return;
    }
    default:
      return;
  }
}

}  // namespace quire::kernels
