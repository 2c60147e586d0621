#pragma once

#include <cstdint>
#include <utility>

#include "kernels/device_buffer.h"
#include "kernels/dtype.h"
#include "kernels/prepared_weight.h"

namespace quire::kernels::cuda {

// A weight matrix on the device: [rows, cols] of f32, f16 or bf16, row-major.
class CudaWeight final : public PreparedWeight {
 public:
  CudaWeight(DeviceBuffer memory, DType dtype, int64_t rows, int64_t cols)
      : memory_(std::move(memory)), dtype_(dtype), rows_(rows), cols_(cols) {}

  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  int64_t bytes() const override { return memory_.bytes(); }
  DType dtype() const { return dtype_; }
  const void* data() const { return memory_.data(); }

 private:
  DeviceBuffer memory_;
  DType dtype_;
  int64_t rows_;
  int64_t cols_;
};

}  // namespace quire::kernels::cuda
