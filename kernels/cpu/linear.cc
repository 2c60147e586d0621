#include "kernels/cpu/linear.h"

#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cpu/huge_memory.h"
#include "kernels/dequantize.h"

namespace quire::kernels::cpu {
namespace {

constexpr int64_t kGroup = 16;
constexpr int64_t kSlack = 16;            // floats around a row of y that whole groups spill into
constexpr int64_t kMaxRowsPerItem = 64;   // of the input
constexpr int64_t kMaxYFloats = 1 << 14;  // of one item: y stays in L2
constexpr int64_t kItemsPerThread = 4;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Linear::Linear(const KernelTable& kernels, ThreadPool& pool)
    : kernels_(kernels),
      pool_(pool),
      y_(pool.num_threads()),
      packed_(pool.num_threads()),
      scratch_(pool.num_threads()) {
  const int64_t floats = 2 * (kMaxYFloats + kMaxRowsPerItem * (kGroup + 3 * kSlack));
  for (std::vector<float>& y : y_) y.resize(static_cast<size_t>(floats));
}

absl::Status Linear::Reserve(const PackedWeight& weight) {
  for (DeviceBuffer& scratch : scratch_) {
    if (!weight.has_quantized() || scratch.bytes() >= kGroup * weight.cols()) continue;
    ASSIGN_OR_RETURN(scratch, AllocateHuge(kGroup * weight.cols()));
  }
  if (weight.bytes() != 0) return absl::OkStatus();
  for (std::vector<uint8_t>& packed : packed_) {
    packed.resize(std::max(packed.size(), static_cast<size_t>(weight.max_group_bytes())));
  }
  return absl::OkStatus();
}

void Linear::QuantizeInput(const LinearArgs& args) {
  const int64_t rows = args.input.dim(0), cols = args.input.dim(1);
  const int64_t group_rows = rows == 1 ? 1 : kGroup;
  const auto blocks =
      static_cast<size_t>(DivideUp(rows, group_rows) * group_rows * (cols / kQuantBlock));
  if (scale_.size() < blocks) {
    q_.resize(blocks * kQuantBlock);
    scale_.resize(blocks);
    scaled_sum_.resize(blocks);
    sums_.resize(2 * blocks);
  }
  quantized_ = {q_.data(), scale_.data(), scaled_sum_.data(), sums_.data(), group_rows};
  constexpr int64_t kRows = 4;
  pool_.ParallelFor(DivideUp(rows, kRows), [&](int64_t item, int) {
    for (int64_t i = item * kRows; i < std::min(rows, (item + 1) * kRows); ++i) {
      kernels_.quantize_row(args.input.data<float>() + i * cols, cols, quantized_.Rows(i, cols));
    }
  });
}

void Linear::Run(const LinearArgs& args) {
  const auto& weight = static_cast<const PackedWeight&>(*args.weight);
  const int64_t rows = args.out.dim(0), outputs = args.out.dim(1);
  if (rows == 0 || outputs == 0) return;
  if (weight.has_quantized()) QuantizeInput(args);

  const int64_t row_blocks = DivideUp(rows, kMaxRowsPerItem);
  // Whole groups of quantised rows.
  const int64_t block_rows = DivideUp(DivideUp(rows, row_blocks), kGroup) * kGroup;
  const int64_t items_wanted = DivideUp(pool_.num_threads() * kItemsPerThread, row_blocks);
  int64_t block_outputs = DivideUp(DivideUp(outputs, items_wanted), kGroup) * kGroup;
  const int64_t y_rows = std::min(rows, block_rows);
  block_outputs = std::min(block_outputs, std::max(kGroup, kMaxYFloats / y_rows / kGroup * kGroup));
  const int64_t output_blocks = DivideUp(outputs, block_outputs);
  pool_.ParallelFor(output_blocks * row_blocks, [&](int64_t item, int thread) {
    const int64_t begin = item / row_blocks * block_outputs;
    const int64_t row_begin = item % row_blocks * block_rows;
    RunBlock(args,
             {.row_begin = row_begin,
              .row_end = std::min(rows, row_begin + block_rows),
              .begin = begin,
              .end = std::min(outputs, begin + block_outputs)},
             thread);
  });
}

void Linear::RunBlock(const LinearArgs& args, const Block& block, int thread) {
  const int64_t count = block.end - block.begin;
  const int64_t outputs = args.out.dim(1);
  const bool gated = IsGated(args.activation);
  const int64_t y_stride = DivideUp(count, kGroup) * kGroup + 2 * kSlack;
  const int64_t rows = block.row_end - block.row_begin;
  float* y = y_[thread].data() + kSlack;
  float* up = y + rows * y_stride + kSlack;
  QUIRE_CHECK(2 * (rows * y_stride + kSlack) <= static_cast<int64_t>(y_[thread].size()));
  Multiply(args, block, block.begin, count, y, y_stride, thread);
  if (gated) Multiply(args, block, outputs + block.begin, count, up, y_stride, thread);

  const float* bias = args.bias.data<float>();
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = (block.row_begin + r) * outputs + block.begin;
    kernels_.epilogue(
        {.y = y + r * y_stride,
         .up = gated ? up + r * y_stride : nullptr,
         .bias = bias == nullptr ? nullptr : bias + block.begin,
         .up_bias = bias == nullptr ? nullptr : bias + outputs + block.begin,
         .residual = args.residual.empty() ? nullptr : args.residual.data<float>() + at,
         .out = args.out.data<float>() + at,
         .count = count,
         .activation = args.activation});
  }
}

void Linear::Multiply(const LinearArgs& args, const Block& block, int64_t first, int64_t count,
                      float* y, int64_t y_stride, int thread) {
  const auto& weight = static_cast<const PackedWeight&>(*args.weight);
  const int64_t cols = weight.cols();
  for (const WeightPart& part : weight.parts()) {
    const int64_t begin = std::max<int64_t>(0, first - part.first_row);
    const int64_t end = std::min(part.view.rows, first + count - part.first_row);
    if (begin >= end) continue;
    // A later part overwrites what the padding of an earlier one spilled.
    const int64_t group_begin = begin / kGroup, group_end = DivideUp(end, kGroup);
    LinearTile tile{.num_groups = group_end - group_begin,
                    .group_bytes = part.group_bytes,
                    .cols = cols,
                    .input = args.input.data<float>() + block.row_begin * cols,
                    .num_rows = block.row_end - block.row_begin,
                    .scratch = static_cast<uint8_t*>(scratch_[thread].data()),
                    .y = y + part.first_row + group_begin * kGroup - first,
                    .y_stride = y_stride};
    if (weight.has_quantized()) tile.quantized = quantized_.Rows(block.row_begin, cols);
    const auto run = kernels_.linear[static_cast<int>(part.view.type)];
    if (part.packed != nullptr) {
      tile.groups = part.packed + group_begin * part.group_bytes;
      run(tile);
      continue;
    }
    tile.groups = packed_[thread].data();
    tile.num_groups = 1;
    for (int64_t g = group_begin; g < group_end; ++g, tile.y += kGroup) {
      PackGroup(part.view, g, packed_[thread].data());
      run(tile);
    }
  }
}

void Linear::UnpackRow(const PackedWeight& weight, int64_t row, float* out) const {
  for (const WeightPart& part : weight.parts()) {
    const int64_t local = row - part.first_row;
    if (local < 0 || local >= part.view.rows) continue;
    if (part.packed != nullptr) {
      cpu::UnpackRow(part.view.type, weight.cols(), part.packed, local, out);
    } else {
      const absl::Status status =
          Dequantize(part.view, local, 1, {out, static_cast<size_t>(weight.cols())});
      QUIRE_CHECK(status.ok()) << status;
    }
  }
}

}  // namespace quire::kernels::cpu
