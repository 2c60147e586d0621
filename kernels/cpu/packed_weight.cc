#include "kernels/cpu/packed_weight.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cpu/huge_memory.h"
#include "kernels/cpu/packed_format.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/float16.h"
#include "kernels/quant/float8.h"
#include "kernels/quant/weight_blocks.h"

namespace quire::kernels::cpu {
namespace {

constexpr int kGroup = 16;
constexpr int64_t kPartAlignment = 64;

bool IsPlain(WeightType type) { return Traits(type).block_elements == 1; }
bool IsScaled(WeightType type) { return type == WeightType::kF8E4M3Scaled; }

// Calls `visit` with the QuantFormat of a quantised type.
template <typename Visit>
auto WithFormat(WeightType type, Visit visit) {
  switch (type) {
    case WeightType::kQ4_0:
      return visit(Q4_0Format());
    case WeightType::kQ4_1:
      return visit(Q4_1Format());
    case WeightType::kQ5_0:
      return visit(Q5_0Format());
    case WeightType::kQ5_1:
      return visit(Q5_1Format());
    case WeightType::kQ8_0:
      return visit(Q8_0Format());
    case WeightType::kQ4_K:
      return visit(Q4_KFormat());
    case WeightType::kQ5_K:
      return visit(Q5_KFormat());
    default:
      QUIRE_CHECK(type == WeightType::kQ6_K) << "not a quantised type: " << Traits(type).name;
      return visit(Q6_KFormat());
  }
}

void StoreU16(uint8_t* p, uint16_t value) { std::memcpy(p, &value, sizeof(value)); }
uint16_t LoadU16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// Returns the byte in a block that holds code k (of 32) of `lane`. Sets *high to true if the code
// is the high nibble of that byte.
template <class Format>
int64_t CodeByte(int lane, int k, bool* high) {
  *high = Format::kCodeBits == 4 && k >= 16;
  const int place = *high ? k - 16 : k;
  return place / 4 * 64 + lane * 4 + place % 4;
}

template <class Format>
void PackLane(WeightType type, const uint8_t* row, int64_t cols, int lane, uint8_t* group) {
  DecodedBlock decoded;
  for (int64_t b = 0; b < cols / 32; ++b) {
    DecodeBlock(type, row, b, &decoded);
    uint8_t* block = group + Format::BlockAt(b);
    for (int k = 0; k < 32; ++k) {
      bool high;
      uint8_t& byte = block[CodeByte<Format>(lane, k, &high)];
      byte = static_cast<uint8_t>(byte | (high ? decoded.codes[k] << 4 : decoded.codes[k]));
    }
    uint8_t* scales = block + Format::kCodeBytes;
    if constexpr (Format::kSuper) {
      uint8_t* header = group + Format::HeaderAt(b);
      StoreU16(header + 2 * lane, decoded.d);
      scales[lane] = static_cast<uint8_t>(decoded.scales[0]);
      if constexpr (Format::kMinimum) {
        StoreU16(header + 32 + 2 * lane, decoded.m);
        scales[16 + lane] = static_cast<uint8_t>(decoded.minimum_scale);
      } else {
        scales[16 + lane] = static_cast<uint8_t>(decoded.scales[1]);
      }
    } else {
      StoreU16(scales + 2 * lane, decoded.d);
      if constexpr (Format::kMinimum) StoreU16(scales + 32 + 2 * lane, decoded.m);
    }
  }
}

template <class Format>
void UnpackLane(int64_t cols, int lane, const uint8_t* group, float* out) {
  for (int64_t b = 0; b < cols / 32; ++b) {
    const uint8_t* block = group + Format::BlockAt(b);
    const uint8_t* scales = block + Format::kCodeBytes;
    const uint8_t* header = group + Format::HeaderAt(b);
    float scale[2];
    float minimum = 0.0f;
    if constexpr (Format::kSuper) {
      const float d = F16ToF32(LoadU16(header + 2 * lane));
      if constexpr (Format::kParts == 2) {
        scale[0] = d * static_cast<float>(static_cast<int8_t>(scales[lane]));
        scale[1] = d * static_cast<float>(static_cast<int8_t>(scales[16 + lane]));
      } else {
        scale[0] = scale[1] = d * static_cast<float>(scales[lane]);
        minimum =
            -(F16ToF32(LoadU16(header + 32 + 2 * lane)) * static_cast<float>(scales[16 + lane]));
      }
    } else {
      scale[0] = scale[1] = F16ToF32(LoadU16(scales + 2 * lane));
      if constexpr (Format::kMinimum) minimum = F16ToF32(LoadU16(scales + 32 + 2 * lane));
    }
    for (int k = 0; k < 32; ++k) {
      bool high;
      const uint8_t byte = block[CodeByte<Format>(lane, k, &high)];
      const int code = Format::kCodeBits == 8 ? byte : (high ? byte >> 4 : byte & 15);
      out[32 * b + k] = scale[k / 16] * static_cast<float>(code - Format::kOffset) + minimum;
    }
  }
}

void PackScaledLane(const uint8_t* row, int64_t cols, int lane, uint8_t* group) {
  for (int64_t k = 0; k < cols; k += kScaledBlock) {
    std::memcpy(group + lane * sizeof(float), row, sizeof(float));
    for (int i = 0; i < kScaledBlock; ++i) {
      group[kScalesOfBlockBytes + i * kGroup + lane] = row[sizeof(float) + i];
    }
    row += kScaledBlockBytes;
    group += kScaledGroupBytes;
  }
}

void UnpackScaledLane(int64_t cols, int lane, const uint8_t* group, float* out) {
  for (int64_t k = 0; k < cols; k += kScaledBlock, group += kScaledGroupBytes) {
    float scale;
    std::memcpy(&scale, group + lane * sizeof(float), sizeof(float));
    for (int i = 0; i < kScaledBlock; ++i) {
      out[k + i] = scale * E4M3ToF32(group[kScalesOfBlockBytes + i * kGroup + lane]);
    }
  }
}

}  // namespace

int64_t GroupBytes(WeightType type, int64_t cols) {
  if (IsScaled(type)) return cols / kScaledBlock * kScaledGroupBytes;
  if (IsPlain(type)) return kGroup * cols * Traits(type).block_bytes;
  return WithFormat(type, [&](auto format) { return decltype(format)::GroupBytes(cols); });
}

void PackGroup(const WeightView& weight, int64_t group, uint8_t* out) {
  std::memset(out, 0, static_cast<size_t>(GroupBytes(weight.type, weight.cols)));
  const WeightTypeTraits& traits = Traits(weight.type);
  const int64_t row_bytes = weight.cols / traits.block_elements * traits.block_bytes;
  const auto* bytes = reinterpret_cast<const uint8_t*>(weight.bytes.data());
  const int lanes = static_cast<int>(std::min<int64_t>(kGroup, weight.rows - group * kGroup));
  for (int lane = 0; lane < lanes; ++lane) {
    const uint8_t* row = bytes + (group * kGroup + lane) * row_bytes;
    if (IsPlain(weight.type)) {
      const int width = traits.block_bytes;
      for (int64_t k = 0; k < weight.cols; ++k) {
        std::memcpy(out + (k * kGroup + lane) * width, row + k * width, static_cast<size_t>(width));
      }
    } else if (IsScaled(weight.type)) {
      PackScaledLane(row, weight.cols, lane, out);
    } else {
      WithFormat(weight.type, [&](auto format) {
        PackLane<decltype(format)>(weight.type, row, weight.cols, lane, out);
      });
    }
  }
}

void UnpackRow(WeightType type, int64_t cols, const uint8_t* groups, int64_t row, float* out) {
  const uint8_t* group = groups + row / kGroup * GroupBytes(type, cols);
  const int lane = static_cast<int>(row % kGroup);
  if (IsScaled(type)) {
    UnpackScaledLane(cols, lane, group, out);
    return;
  }
  if (!IsPlain(type)) {
    WithFormat(type, [&](auto format) { UnpackLane<decltype(format)>(cols, lane, group, out); });
    return;
  }
  for (int64_t k = 0; k < cols; ++k) {
    const int64_t at = k * kGroup + lane;
    if (type == WeightType::kF32) {
      std::memcpy(out + k, group + 4 * at, 4);
    } else if (type == WeightType::kF8E4M3) {
      out[k] = E4M3ToF32(group[at]);
    } else {
      const uint16_t bits = LoadU16(group + 2 * at);
      out[k] = type == WeightType::kF16 ? F16ToF32(bits) : Bf16ToF32(bits);
    }
  }
}

absl::StatusOr<std::unique_ptr<PackedWeight>> PackedWeight::Create(
    std::span<const WeightView> parts, bool pack) {
  auto weight = std::make_unique<PackedWeight>();
  int64_t total = 0;
  for (const WeightView& view : parts) {
    WeightPart part{
        .view = view, .first_row = weight->rows_, .group_bytes = GroupBytes(view.type, view.cols)};
    weight->rows_ += view.rows;
    weight->cols_ = view.cols;
    weight->has_quantized_ = weight->has_quantized_ || !(IsPlain(view.type) || IsScaled(view.type));
    weight->max_group_bytes_ = std::max(weight->max_group_bytes_, part.group_bytes);
    total += base::RoundUp(part.num_groups() * part.group_bytes, kPartAlignment);
    weight->parts_.push_back(part);
  }
  if (!pack) return weight;

  ASSIGN_OR_RETURN(weight->memory_, AllocateHuge(total));
  auto* next = static_cast<uint8_t*>(weight->memory_.data());
  for (WeightPart& part : weight->parts_) {
    part.packed = next;
    for (int64_t g = 0; g < part.num_groups(); ++g) {
      PackGroup(part.view, g, next + g * part.group_bytes);
    }
    next += base::RoundUp(part.num_groups() * part.group_bytes, kPartAlignment);
    part.view.bytes = {};
  }
  return weight;
}

}  // namespace quire::kernels::cpu
