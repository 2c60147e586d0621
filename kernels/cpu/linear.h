#pragma once

// Divides a matrix product between threads: ranges of outputs and of rows, never of k.

#include <vector>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/packed_weight.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops/linear.h"

namespace quire::kernels::cpu {

class Linear {
 public:
  Linear(const KernelTable& kernels, ThreadPool& pool);  // both must outlive this

  // Makes room for what a weight needs at each use, so that Run need not.
  absl::Status Reserve(const PackedWeight& weight);
  // `args` were validated and hold f32 activations.
  void Run(const LinearArgs& args);
  // Row `row` of the stacked weight as float32. Thread-safe.
  void UnpackRow(const PackedWeight& weight, int64_t row, float* out) const;

 private:
  // What one item computes: rows [row_begin, row_end) of the input, outputs [begin, end).
  struct Block {
    int64_t row_begin, row_end, begin, end;
  };

  void QuantizeInput(const LinearArgs& args);
  void RunBlock(const LinearArgs& args, const Block& block, int thread);
  // y[row, i] = output first + i of the stacked weight, for i in [0, count). Writes up to 15 floats
  // before a row of y and 15 after its `count`.
  void Multiply(const LinearArgs& args, const Block& block, int64_t first, int64_t count, float* y,
                int64_t y_stride, int thread);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  QuantizedRows quantized_;
  std::vector<int8_t> q_;
  std::vector<float> scale_, scaled_sum_;
  std::vector<int32_t> sums_;
  std::vector<std::vector<float>> y_;         // one a thread
  std::vector<std::vector<uint8_t>> packed_;  // one a thread: a group of a mapped weight
  std::vector<DeviceBuffer> scratch_;         // one a thread: LinearTile::scratch
};

}  // namespace quire::kernels::cpu
