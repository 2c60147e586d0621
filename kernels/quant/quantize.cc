#include "kernels/quant/quantize.h"

#include <bit>
#include <cstring>
#include <limits>

#include "absl/strings/str_format.h"

#include "kernels/quant/quantize_k.h"
#include "kernels/quant/quantize_search.h"
#include "kernels/quant/weight_blocks.h"

namespace quire::kernels {
namespace {

using namespace quantize_internal;  // NOLINT: names of this folder

constexpr float kLargestF16 = 65504.0f;

// Returns the largest magnitude that a weight may have.
float LargestWeight(WeightType type) {
  switch (type) {
    case WeightType::kF16:
      return std::bit_cast<float>(0x477fefffu);  // the next value rounds to infinity
    case WeightType::kBF16:
      return std::bit_cast<float>(0x7f7f7fffu);  // the next value rounds to infinity
    case WeightType::kQ4_0:
      return kLargestF16 * 8;
    case WeightType::kQ5_0:
      return kLargestF16 * 16;
    case WeightType::kQ8_0:
      return kLargestF16 * 127;
    case WeightType::kQ4_K:
      return kLargestF16 * 63;  // the largest minimum of a block
    case WeightType::kQ6_K:
      return kLargestF16 * 127 * 32;
    default:
      return std::numeric_limits<float>::max();
  }
}

// Quantises to Q4_0 or Q5_0. Codes run from -levels to levels - 1, and the scale may have either
// sign.
void QuantizeSymmetric(const float* x, int levels, DecodedBlock* out) {
  const CodeRange range = {static_cast<float>(-levels), static_cast<float>(levels - 1)};
  const float extreme = Extreme<kSubBlock>(x);
  float scale = 0.0f;
  if (std::abs(extreme) >= kNegligible) {
    // Tries the scales that map the extreme weight to a whole or half code, even to a code beyond
    // the range, because clipping the extreme weight may allow a better scale for the other
    // weights. If the weights came from a block of this type, one of the whole codes gives their
    // original scale.
    float explained = 0.0f;
    for (int halves = 1; halves <= levels * 9 / 4; ++halves) {
      for (const float code :
           {-0.5f * static_cast<float>(halves), 0.5f * static_cast<float>(halves)}) {
        const CodeSums sums = SumCodes<kSubBlock>(x, 0.0f, code / extreme, range);
        if (sums.explained() > explained) {
          explained = sums.explained();
          scale = sums.scale();
        }
      }
    }
  }
  // Rounding the scale to f16 may change codes, and the best scale for the new codes may differ.
  float least = std::numeric_limits<float>::infinity();
  for (int round = 0; round < 3; ++round) {
    const uint16_t stored = StoredScale(scale);
    const float step = F16ToF32(stored);
    const float error = SquaredError<kSubBlock>(x, 0.0f, step, range);
    if (error >= least) break;
    least = error;
    out->d = stored;
    scale = SumCodes<kSubBlock>(x, 0.0f, Inverse(step), range).scale();
  }
  StoreCodes<kSubBlock>(x, 0.0f, F16ToF32(out->d), range, out->codes);
}

// Quantises to Q8_0. With 127 steps from zero to the extreme weight, a search would gain less than
// 1 %. So the scale and the codes are the same as llama.cpp's. The codes are computed with the
// float32 scale and not with the stored f16. Ties round away from zero.
void QuantizeQ8(const float* x, DecodedBlock* out) {
  const float scale = std::abs(Extreme<kSubBlock>(x)) / 127.0f;
  float step = scale;
  out->d = F32ToF16(scale);
  if (scale < 0x1p-14f) {
    // This scale is below the normal numbers of f16, where f16 is coarse. So the stored scale is
    // rounded up, and the codes use the stored scale.
    if (F16ToF32(out->d) < scale) ++out->d;
    step = F16ToF32(out->d);
  }
  const float inverse = Inverse(step);
  for (int i = 0; i < kSubBlock; ++i) {
    const float scaled = x[i] * inverse;
    const int whole = static_cast<int>(scaled);
    const float rest = scaled - static_cast<float>(whole);
    const int code = whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0);
    out->codes[i] = static_cast<uint8_t>(code + 128);
  }
}

void QuantizeRow(WeightType type, std::span<const float> row, uint8_t* out) {
  const auto cols = static_cast<int64_t>(row.size());
  switch (type) {
    case WeightType::kF32:
      std::memcpy(out, row.data(), row.size_bytes());
      return;
    case WeightType::kF16:
    case WeightType::kBF16:
      for (int64_t i = 0; i < cols; ++i) {
        const uint16_t value = type == WeightType::kF16 ? F32ToF16(row[i]) : F32ToBf16(row[i]);
        std::memcpy(out + 2 * i, &value, sizeof(value));
      }
      return;
    default:
      break;
  }
  const int64_t together = Traits(type).block_elements / kSubBlock;
  for (int64_t b = 0; b < cols / kSubBlock; b += together) {
    const float* x = row.data() + b * kSubBlock;
    DecodedBlock blocks[8];
    if (type == WeightType::kQ4_0) QuantizeSymmetric(x, 8, blocks);
    if (type == WeightType::kQ5_0) QuantizeSymmetric(x, 16, blocks);
    if (type == WeightType::kQ8_0) QuantizeQ8(x, blocks);
    if (type == WeightType::kQ4_K) QuantizeQ4K(x, blocks);
    if (type == WeightType::kQ6_K) QuantizeQ6K(x, blocks);
    for (int64_t j = 0; j < together; ++j) EncodeBlock(type, blocks[j], b + j, out);
  }
}

}  // namespace

bool CanQuantize(WeightType type) {
  switch (type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
    case WeightType::kQ4_0:
    case WeightType::kQ5_0:
    case WeightType::kQ8_0:
    case WeightType::kQ4_K:
    case WeightType::kQ6_K:
      return true;
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ5_K:
    case WeightType::kF8E4M3:
    case WeightType::kF8E4M3Scaled:
      return false;
  }
  return false;
}

absl::Status Quantize(WeightType type, std::span<const float> rows, int64_t cols,
                      std::span<std::byte> out) {
  const WeightTypeTraits& traits = Traits(type);
  if (!CanQuantize(type)) {
    return absl::InvalidArgumentError(absl::StrFormat("weights: cannot write %s", traits.name));
  }
  if (cols <= 0 || cols % traits.block_elements != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("weights: want a multiple of %d cols for %s, got %d", traits.block_elements,
                        traits.name, cols));
  }
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t row_bytes = cols / traits.block_elements * traits.block_bytes;
  const int64_t num_rows = count / cols;
  if (count % cols != 0 || static_cast<int64_t>(out.size()) != num_rows * row_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("weights: want rows of %d floats and %d bytes for each, got %d and %d",
                        cols, row_bytes, count, out.size()));
  }
  const float largest = LargestWeight(type);
  for (int64_t i = 0; i < num_rows; ++i) {
    const std::span<const float> row = rows.subspan(i * cols, cols);
    for (const float weight : row) {
      if (std::abs(weight) <= largest) continue;  // false for a NaN
      return absl::InvalidArgumentError(
          absl::StrFormat("weights: row %d: want finite values of at most %g for %s, got %g", i,
                          largest, traits.name, weight));
    }
    const std::span<std::byte> bytes = out.subspan(i * row_bytes, row_bytes);
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    QuantizeRow(type, row, reinterpret_cast<uint8_t*>(bytes.data()));
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels
