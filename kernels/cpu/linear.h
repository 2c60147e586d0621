#pragma once

// Divides matrix products between threads: ranges of outputs and of rows, never of k.

#include <span>
#include <vector>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/packed_weight.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops/linear.h"

namespace quire::kernels::cpu {

// Rows [row_begin, row_end) of the input, at least one, against those of the weight from
// first_weight_row.
struct RowGroup {
  int64_t row_begin = 0, row_end = 0, first_weight_row = 0;
};

// Each group of rows against its own part of one weight.
struct GroupedProduct {
  const PackedWeight* weight = nullptr;
  const float* input = nullptr;     // [rows, cols]
  float* out = nullptr;             // [rows, outputs]
  int64_t outputs = 0;              // of a group; gated, the up projection's rows follow the gate's
  const float* bias = nullptr;      // of one group; null without one
  const float* residual = nullptr;  // as out; null without one
  Activation activation = Activation::kNone;
  std::span<const RowGroup> groups;  // of all rows, in their order
};

class Linear {
 public:
  Linear(const KernelTable& kernels, ThreadPool& pool);  // both must outlive this

  // Makes room for what a weight needs at each use, so that Run need not.
  absl::Status Reserve(const PackedWeight& weight);
  // `args` were validated and hold f32 activations.
  void Run(const LinearArgs& args);
  void RunGrouped(const GroupedProduct& product);
  // Row `row` of the stacked weight as float32. Thread-safe.
  void UnpackRow(const PackedWeight& weight, int64_t row, float* out) const;

 private:
  // How a group is divided into items, which count on from those of the group before.
  struct GroupPlan {
    int64_t first_item = 0, row_blocks = 0, block_rows = 0, block_outputs = 0;
    int64_t first_quantize_item = 0;
    QuantizedRows quantized;
  };
  // The work of one item: rows [row_begin, row_end) of the input, outputs [begin, end).
  struct Block {
    int64_t row_begin = 0, row_end = 0, begin = 0, end = 0;
    int64_t first_weight_row = 0;
    QuantizedRows quantized;  // from row_begin
  };

  // Fills plans_; the number of items.
  int64_t PlanItems(const GroupedProduct& product);
  Block BlockOf(const GroupedProduct& product, int64_t item) const;
  void QuantizeInput(const GroupedProduct& product);
  void RunBlock(const GroupedProduct& product, const Block& block, int thread);
  // y[row, i] = output first + i of the stacked weight, for i in [0, count). Writes up to 15 floats
  // before a row of y and 15 after its `count`.
  void Multiply(const GroupedProduct& product, const Block& block, int64_t first, int64_t count,
                float* y, int64_t y_stride, int thread);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  std::vector<GroupPlan> plans_;  // one a group
  std::vector<int8_t> q_;
  std::vector<float> scale_, scaled_sum_;
  std::vector<int32_t> sums_;
  std::vector<std::vector<float>> y_;         // one a thread
  std::vector<std::vector<uint8_t>> packed_;  // one a thread: a group of a mapped weight
  std::vector<DeviceBuffer> scratch_;         // one a thread: LinearTile::scratch
};

}  // namespace quire::kernels::cpu
