#include "kernels/cpu/linear.h"

#include <algorithm>

#include "base/check.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cpu/huge_memory.h"
#include "kernels/quant/dequantize.h"

namespace quire::kernels::cpu {
namespace {

constexpr int64_t kGroup = 16;
constexpr int64_t kSlack = 16;  // spare floats around each row of y; whole groups are written
// The most rows of the input in one item.
constexpr int64_t kMaxRowsPerItem = 64;
constexpr int64_t kMaxYFloats = 1 << 14;  // the most floats of y in one item, so that y stays in L2
constexpr int64_t kItemsPerThread = 4;
constexpr int64_t kValuesPerItem = 8192;  // quantised by one item, in some microseconds

using base::CeilDiv;

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

int64_t Linear::PlanItems(const GroupedProduct& product) {
  int64_t row_blocks = 0;
  for (const RowGroup& group : product.groups) {
    row_blocks += CeilDiv(group.row_end - group.row_begin, kMaxRowsPerItem);
  }
  const int64_t items_wanted = CeilDiv(pool_.num_threads() * kItemsPerThread, row_blocks);
  plans_.clear();
  int64_t num_items = 0;
  for (const RowGroup& group : product.groups) {
    const int64_t rows = group.row_end - group.row_begin;
    GroupPlan plan{.first_item = num_items, .row_blocks = CeilDiv(rows, kMaxRowsPerItem)};
    // A block has whole groups of quantised rows.
    plan.block_rows = CeilDiv(CeilDiv(rows, plan.row_blocks), kGroup) * kGroup;
    plan.block_outputs = CeilDiv(CeilDiv(product.outputs, items_wanted), kGroup) * kGroup;
    const int64_t y_rows = std::min(rows, plan.block_rows);
    plan.block_outputs =
        std::min(plan.block_outputs, std::max(kGroup, kMaxYFloats / y_rows / kGroup * kGroup));
    num_items += plan.row_blocks * CeilDiv(product.outputs, plan.block_outputs);
    plans_.push_back(plan);
  }
  return num_items;
}

Linear::Block Linear::BlockOf(const GroupedProduct& product, int64_t item) const {
  const auto plan = std::ranges::upper_bound(plans_, item, {}, &GroupPlan::first_item) - 1;
  const RowGroup& group = product.groups[static_cast<size_t>(plan - plans_.begin())];
  const int64_t local = item - plan->first_item;
  const int64_t begin = local / plan->row_blocks * plan->block_outputs;
  const int64_t row = local % plan->row_blocks * plan->block_rows;
  Block block{.row_begin = group.row_begin + row,
              .row_end = std::min(group.row_end, group.row_begin + row + plan->block_rows),
              .begin = begin,
              .end = std::min(product.outputs, begin + plan->block_outputs),
              .first_weight_row = group.first_weight_row};
  if (product.weight->has_quantized()) {
    block.quantized = plan->quantized.Rows(row, product.weight->cols());
  }
  return block;
}

void Linear::QuantizeInput(const GroupedProduct& product) {
  const int64_t cols = product.weight->cols(), blocks = cols / kQuantBlock;
  const auto padded = [](const RowGroup& group) {
    const int64_t rows = group.row_end - group.row_begin;
    return rows == 1 ? 1 : CeilDiv(rows, kGroup) * kGroup;
  };
  int64_t num_rows = 0;
  for (const RowGroup& group : product.groups) num_rows += padded(group);
  const auto num_blocks = static_cast<size_t>(num_rows * blocks);
  if (scale_.size() < num_blocks) {
    q_.resize(num_blocks * kQuantBlock);
    scale_.resize(num_blocks);
    scaled_sum_.resize(num_blocks);
    sums_.resize(2 * num_blocks);
  }
  // The division of one row, or of one group of 16 rows, into `count` items of `blocks` blocks
  // each.
  struct Items {
    int64_t blocks, count;
  };
  const auto items_of_row = [blocks](int64_t places) {
    const int64_t item_blocks = kValuesPerItem / kQuantBlock / places;
    return Items{.blocks = item_blocks, .count = CeilDiv(blocks, item_blocks)};
  };
  // The first block and the first item of the current group.
  int64_t first = 0, num_items = 0;
  for (size_t g = 0; g < plans_.size(); ++g) {
    const int64_t rows = padded(product.groups[g]), places = rows == 1 ? 1 : kGroup;
    plans_[g].quantized = {q_.data() + first * kQuantBlock, scale_.data() + first,
                           scaled_sum_.data() + first, sums_.data() + 2 * first, places};
    plans_[g].first_quantize_item = num_items;
    first += rows * blocks;
    num_items += rows / places * items_of_row(places).count;
  }
  pool_.ParallelFor(num_items, [&](int64_t item, int) {
    const auto plan =
        std::ranges::upper_bound(plans_, item, {}, &GroupPlan::first_quantize_item) - 1;
    const RowGroup& group = product.groups[static_cast<size_t>(plan - plans_.begin())];
    const int64_t places = plan->quantized.group_rows;
    const Items items = items_of_row(places);
    const int64_t local = item - plan->first_quantize_item;
    const int64_t row = local / items.count * places;
    const int64_t block = local % items.count * items.blocks;
    kernels_.quantize({.input = product.input + (group.row_begin + row) * cols,
                       .num_rows = std::min(places, group.row_end - group.row_begin - row),
                       .cols = cols,
                       .first_block = block,
                       .end_block = std::min(blocks, block + items.blocks),
                       .out = plan->quantized.Rows(row, cols)});
  });
}

void Linear::Run(const LinearArgs& args) {
  const int64_t rows = args.out.dim(0);
  if (rows == 0) return;
  const RowGroup all{.row_begin = 0, .row_end = rows, .first_weight_row = 0};
  RunGrouped({.weight = static_cast<const PackedWeight*>(args.weight),
              .input = args.input.data<float>(),
              .out = args.out.data<float>(),
              .outputs = args.out.dim(1),
              .bias = args.bias.data<float>(),
              .residual = args.residual.data<float>(),
              .activation = args.activation,
              .activation_limit = args.activation_limit,
              .soft_cap = args.soft_cap,
              .groups = {&all, 1}});
}

void Linear::RunGrouped(const GroupedProduct& product) {
  if (product.groups.empty() || product.outputs == 0) return;
  const int64_t num_items = PlanItems(product);
  if (product.weight->has_quantized()) QuantizeInput(product);
  pool_.ParallelFor(num_items, [&](int64_t item, int thread) {
    RunBlock(product, BlockOf(product, item), thread);
  });
}

void Linear::RunBlock(const GroupedProduct& product, const Block& block, int thread) {
  const int64_t count = block.end - block.begin;
  const int64_t outputs = product.outputs;
  const int64_t y_stride = CeilDiv(count, kGroup) * kGroup + 2 * kSlack;
  const int64_t rows = block.row_end - block.row_begin;
  const bool gated = IsGated(product.activation);
  float* y = y_[thread].data() + kSlack;
  float* up = y + rows * y_stride + kSlack;
  QUIRE_CHECK(2 * (rows * y_stride + kSlack) <= static_cast<int64_t>(y_[thread].size()));
  const int64_t first = block.first_weight_row + block.begin;
  Multiply(product, block, first, count, y, y_stride, thread);
  if (gated) Multiply(product, block, first + outputs, count, up, y_stride, thread);

  const float* bias = product.bias;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = (block.row_begin + r) * outputs + block.begin;
    kernels_.epilogue({.y = y + r * y_stride,
                       .up = gated ? up + r * y_stride : nullptr,
                       .bias = bias == nullptr ? nullptr : bias + first,
                       .up_bias = bias == nullptr ? nullptr : bias + first + outputs,
                       .residual = product.residual == nullptr ? nullptr : product.residual + at,
                       .out = product.out + at,
                       .count = count,
                       .activation = product.activation,
                       .activation_limit = product.activation_limit,
                       .soft_cap = product.soft_cap});
  }
}

void Linear::Multiply(const GroupedProduct& product, const Block& block, int64_t first,
                      int64_t count, float* y, int64_t y_stride, int thread) {
  const PackedWeight& weight = *product.weight;
  const int64_t cols = weight.cols();
  for (const WeightPart& part : weight.parts()) {
    const int64_t begin = std::max<int64_t>(0, first - part.first_row);
    const int64_t end = std::min(part.view.rows, first + count - part.first_row);
    if (begin >= end) continue;
    // A part is computed in whole groups of 16 outputs. So its last group may also write up to 15
    // floats of the next part, which is computed later and overwrites these floats.
    const int64_t group_begin = begin / kGroup, group_end = CeilDiv(end, kGroup);
    LinearTile tile{.num_groups = group_end - group_begin,
                    .group_bytes = part.group_bytes,
                    .cols = cols,
                    .input = product.input + block.row_begin * cols,
                    .quantized = block.quantized,
                    .num_rows = block.row_end - block.row_begin,
                    .scratch = static_cast<uint8_t*>(scratch_[thread].data()),
                    .y = y + part.first_row + group_begin * kGroup - first,
                    .y_stride = y_stride};
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
