#include "kernels/cuda/product/fp8_weight.h"

#include <cstring>

namespace quire::kernels::cuda {
namespace {

constexpr int64_t kFileBlocks = kScaledGemmBlock / kScaledBlock;  // in a row of a 128 x 128 block

const std::byte* Block(const WeightView& weight, int64_t row, int64_t block) {
  const int64_t blocks_of_row = weight.cols / kScaledBlock;
  return weight.bytes.data() + (row * blocks_of_row + block) * kScaledBlockBytes;
}

float ScaleOf(const WeightView& weight, int64_t row, int64_t block) {
  float scale;
  std::memcpy(&scale, Block(weight, row, block), sizeof(scale));
  return scale;
}

// Returns true if all blocks of `rows` x `blocks` blocks have one scale, everywhere in `weight`.
bool HasOneScaleIn(const WeightView& weight, int64_t rows, int64_t blocks) {
  for (int64_t row = 0; row < weight.rows; ++row) {
    for (int64_t block = 0; block < weight.cols / kScaledBlock; ++block) {
      const float first = ScaleOf(weight, row - row % rows, block - block % blocks);
      if (ScaleOf(weight, row, block) != first) return false;
    }
  }
  return true;
}

}  // namespace

GemmScales Fp8ScalesOf(const WeightView& weight) {
  if (weight.type != WeightType::kF8E4M3Scaled || weight.rows % kScaledGemmUnit != 0) {
    return GemmScales::kNone;
  }
  if (HasOneScaleIn(weight, 1, weight.cols / kScaledBlock)) return GemmScales::kRows;
  const bool is_whole = weight.rows % kScaledGemmBlock == 0 && weight.cols % kScaledGemmBlock == 0;
  return is_whole && HasOneScaleIn(weight, kScaledGemmBlock, kFileBlocks) ? GemmScales::kBlocks
                                                                          : GemmScales::kNone;
}

int64_t ScaleRowBytes(GemmScales scales, int64_t cols) {
  const int64_t count = scales == GemmScales::kBlocks ? BlockScaleStride(cols) : 1;
  return count * static_cast<int64_t>(sizeof(float));
}

void CopyCodes(const WeightView& weight, int64_t first, int64_t count, std::byte* out) {
  for (int64_t row = first; row < first + count; ++row) {
    for (int64_t block = 0; block < weight.cols / kScaledBlock; ++block) {
      std::memcpy(out, Block(weight, row, block) + sizeof(float), kScaledBlock);
      out += kScaledBlock;
    }
  }
}

void CopyScales(const WeightView& weight, GemmScales scales, int64_t first, int64_t count,
                std::byte* out) {
  const int64_t row_bytes = ScaleRowBytes(scales, weight.cols);
  const int64_t used = scales == GemmScales::kBlocks ? weight.cols / kScaledGemmBlock : 1;
  for (int64_t i = 0; i < count; ++i, out += row_bytes) {
    std::memset(out, 0, static_cast<size_t>(row_bytes));
    for (int64_t j = 0; j < used; ++j) {
      const float scale = ScaleOf(weight, (first + i) * RowsOfScales(scales), j * kFileBlocks);
      std::memcpy(out + j * static_cast<int64_t>(sizeof(float)), &scale, sizeof(scale));
    }
  }
}

}  // namespace quire::kernels::cuda
