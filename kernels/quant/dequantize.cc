#include "kernels/quant/dequantize.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"

#include "kernels/quant/float16.h"
#include "kernels/quant/float8.h"
#include "kernels/quant/weight_blocks.h"

namespace quire::kernels {
namespace {

void DequantizeRow(WeightType type, const uint8_t* row, int64_t cols, float* out) {
  switch (type) {
    case WeightType::kF32:
      std::memcpy(out, row, static_cast<size_t>(cols) * sizeof(float));
      return;
    case WeightType::kF16:
    case WeightType::kBF16:
      for (int64_t i = 0; i < cols; ++i) {
        uint16_t value;
        std::memcpy(&value, row + 2 * i, sizeof(value));
        out[i] = type == WeightType::kF16 ? F16ToF32(value) : Bf16ToF32(value);
      }
      return;
    case WeightType::kF8E4M3:
      std::transform(row, row + cols, out, E4M3ToF32);
      return;
    case WeightType::kF8E4M3Scaled:
      for (int64_t i = 0; i < cols; i += kScaledBlock, row += kScaledBlockBytes) {
        float scale;
        std::memcpy(&scale, row, sizeof(scale));
        for (int j = 0; j < kScaledBlock; ++j) out[i + j] = scale * E4M3ToF32(row[4 + j]);
      }
      return;
    default:
      break;
  }
  DecodedBlock block;
  for (int64_t b = 0; b < cols / kSubBlock; ++b) {
    DecodeBlock(type, row, b, &block);
    for (int i = 0; i < kSubBlock; ++i) {
      const float code = static_cast<float>(block.codes[i] - block.offset);
      // scale * code is exact, so only the addition rounds. Therefore the result has the same bits
      // as ggml's, although ggml may order the operations differently.
      out[b * kSubBlock + i] = block.scale(i / 16) * code + block.minimum();
    }
  }
}

}  // namespace

absl::Status ValidateWeight(const WeightView& weight) {
  const WeightTypeTraits& traits = Traits(weight.type);
  if (weight.rows <= 0 || weight.cols <= 0 || weight.cols % traits.block_elements != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("weight: want %s [rows, cols] with cols a multiple of %d, got [%d, %d]",
                        traits.name, traits.block_elements, weight.rows, weight.cols));
  }
  const int64_t want = weight.rows * (weight.cols / traits.block_elements * traits.block_bytes);
  if (static_cast<int64_t>(weight.bytes.size()) != want) {
    return absl::InvalidArgumentError(
        absl::StrFormat("weight: want %d bytes for %s [%d, %d], got %d", want, traits.name,
                        weight.rows, weight.cols, weight.bytes.size()));
  }
  return absl::OkStatus();
}

absl::Status Dequantize(const WeightView& weight, int64_t first_row, int64_t num_rows,
                        std::span<float> out) {
  if (absl::Status status = ValidateWeight(weight); !status.ok()) return status;
  if (first_row < 0 || num_rows < 0 || first_row > weight.rows - num_rows) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "rows: want a range within [0, %d), got [%d, +%d)", weight.rows, first_row, num_rows));
  }
  if (static_cast<int64_t>(out.size()) != num_rows * weight.cols) {
    return absl::InvalidArgumentError(
        absl::StrFormat("out: want %d floats, got %d", num_rows * weight.cols, out.size()));
  }
  const WeightTypeTraits& traits = Traits(weight.type);
  const int64_t row_bytes = weight.cols / traits.block_elements * traits.block_bytes;
  const auto* bytes = reinterpret_cast<const uint8_t*>(weight.bytes.data());
  for (int64_t i = 0; i < num_rows; ++i) {
    DequantizeRow(weight.type, bytes + (first_row + i) * row_bytes, weight.cols,
                  out.data() + i * weight.cols);
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels
