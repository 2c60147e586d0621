#pragma once

// Divides matrix products between threads by ranges of outputs and of rows. The sum over k of an
// output is never divided.

#include <span>
#include <vector>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/packed_weight.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops/linear.h"

namespace quire::kernels::cpu {

// Rows [row_begin, row_end) of the input, at least one row. These rows are multiplied by the weight
// rows that begin at first_weight_row.
struct RowGroup {
  int64_t row_begin = 0, row_end = 0, first_weight_row = 0;
};

// A product in which each group of input rows is multiplied by its own rows of one weight.
struct GroupedProduct {
  const PackedWeight* weight = nullptr;
  const float* input = nullptr;  // [rows, cols]
  float* out = nullptr;          // [rows, outputs]
  // The number of outputs of each group. If the activation is gated, a group has 2 * `outputs`
  // weight rows: first the rows of the gate, then the rows of the up projection.
  int64_t outputs = 0;
  const float* bias = nullptr;      // [rows of the weight]; null: none
  const float* residual = nullptr;  // shape of out; null: none
  Activation activation = Activation::kNone;
  float activation_limit = 0.0f;     // as in LinearArgs
  float soft_cap = 0.0f;             // as in LinearArgs
  std::span<const RowGroup> groups;  // cover all rows, in order
};

class Linear {
 public:
  Linear(const KernelTable& kernels, ThreadPool& pool);  // both must outlive this

  // Allocates in advance the scratch memory that products with `weight` need.
  absl::Status Reserve(const PackedWeight& weight);
  // `args` must have been validated, and must hold f32 activations.
  void Run(const LinearArgs& args);
  void RunGrouped(const GroupedProduct& product);
  // Writes row `row` of the stacked weight to `out` as float32. Thread-safe.
  void UnpackRow(const PackedWeight& weight, int64_t row, float* out) const;

 private:
  // How one group of rows is divided into items. Item numbers continue from one group to the next.
  struct GroupPlan {
    int64_t first_item = 0, row_blocks = 0, block_rows = 0, block_outputs = 0;
    int64_t first_quantize_item = 0;
    QuantizedRows quantized;
  };
  // The work of one item: rows [row_begin, row_end) of the input, outputs [begin, end).
  struct Block {
    int64_t row_begin = 0, row_end = 0, begin = 0, end = 0;
    int64_t first_weight_row = 0;
    QuantizedRows quantized;  // begins at row_begin
  };

  // Fills plans_ and returns the number of items.
  int64_t PlanItems(const GroupedProduct& product);
  Block BlockOf(const GroupedProduct& product, int64_t item) const;
  void QuantizeInput(const GroupedProduct& product);
  void RunBlock(const GroupedProduct& product, const Block& block, int thread);
  // Computes the outputs [first, first + count) of the stacked weight for the rows of `block`, and
  // writes them to y[row, 0] .. y[row, count - 1]. May also overwrite up to 15 floats before each
  // row of y, and up to 15 floats after the `count` floats of the row.
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
