#pragma once

// Divides matrix products between threads: ranges of outputs and of rows, never of k.

#include <span>
#include <vector>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/packed_weight.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops/linear.h"

namespace quire::kernels::cpu {

// Rows [row_begin, row_end) of the input, at least one row. They are multiplied by the weight rows
// that begin at first_weight_row.
struct RowGroup {
  int64_t row_begin = 0, row_end = 0, first_weight_row = 0;
};

// A product in which each group of input rows has its own part of one weight.
struct GroupedProduct {
  const PackedWeight* weight = nullptr;
  const float* input = nullptr;  // [rows, cols]
  float* out = nullptr;          // [rows, outputs]
  // The outputs of a group. If the activation is gated, the group's weight rows are those of the
  // gate, then those of the up projection, with `outputs` rows each.
  int64_t outputs = 0;
  const float* bias = nullptr;      // the same for all groups; null: none
  const float* residual = nullptr;  // shape of out; null: none
  Activation activation = Activation::kNone;
  std::span<const RowGroup> groups;  // cover all rows, in order
};

class Linear {
 public:
  Linear(const KernelTable& kernels, ThreadPool& pool);  // both must outlive this

  // Allocates the memory that each use of `weight` needs, so that Run need not.
  absl::Status Reserve(const PackedWeight& weight);
  // `args` were validated and hold f32 activations.
  void Run(const LinearArgs& args);
  void RunGrouped(const GroupedProduct& product);
  // Writes row `row` of the stacked weight to `out` as float32. Thread-safe.
  void UnpackRow(const PackedWeight& weight, int64_t row, float* out) const;

 private:
  // The division of a group into items. Item numbers continue from the previous group.
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

  // Fills plans_ and returns the number of items.
  int64_t PlanItems(const GroupedProduct& product);
  Block BlockOf(const GroupedProduct& product, int64_t item) const;
  void QuantizeInput(const GroupedProduct& product);
  void RunBlock(const GroupedProduct& product, const Block& block, int thread);
  // Computes y[row, i] = output first + i of the stacked weight, for i in [0, count). Also writes
  // up to 15 floats before each row of y, and up to 15 floats after its first `count`.
  void Multiply(const GroupedProduct& product, const Block& block, int64_t first, int64_t count,
                float* y, int64_t y_stride, int thread);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  std::vector<GroupPlan> plans_;  // one per group
  std::vector<int8_t> q_;
  std::vector<float> scale_, scaled_sum_;
  std::vector<int32_t> sums_;
  std::vector<std::vector<float>> y_;         // one per thread
  std::vector<std::vector<uint8_t>> packed_;  // one per thread: a packed group of a mapped weight
  std::vector<DeviceBuffer> scratch_;         // one per thread: LinearTile::scratch
};

}  // namespace quire::kernels::cpu
