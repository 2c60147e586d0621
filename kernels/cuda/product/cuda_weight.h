#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/device/device.h"
#include "kernels/device_buffer.h"
#include "kernels/dtype.h"
#include "kernels/prepared_weight.h"
#include "kernels/quant/weight_view.h"

namespace quire::kernels::cuda {

// Rows of a weight that are stored in one form.
struct CudaWeightPart {
  int64_t first_row = 0, num_rows = 0;
  int64_t offset = 0;  // of its first byte in the memory of the weight
  // The type of packed rows (packed_weight.h). None: the rows are row-major, in e4m3 if they have
  // scales, else in the weight's dtype.
  std::optional<WeightType> packed;
  GemmScales scales = GemmScales::kNone;
  int64_t scales_offset = 0;  // of the first byte of the scales, in the memory of the weight
};

// A weight matrix on the device: [rows, cols]. Its parts are stacked by rows. The values are those
// of the dtype, f32, f16 or bf16, also where they are stored packed. Those of parts with scales are
// the numbers in e4m3 times their scales, and their products round the tokens to e4m3, too
// (fp8_product.h).
class CudaWeight final : public PreparedWeight {
 public:
  // A weight of one part, which is not packed.
  CudaWeight(DeviceBuffer memory, DType dtype, int64_t rows, int64_t cols)
      : CudaWeight(std::move(memory), dtype, cols, {{.num_rows = rows}}) {}
  CudaWeight(DeviceBuffer memory, DType dtype, int64_t cols, std::vector<CudaWeightPart> parts)
      : memory_(std::move(memory)), dtype_(dtype), cols_(cols), parts_(std::move(parts)) {
    for (const CudaWeightPart& part : parts_) {
      rows_ += part.num_rows;
      is_packed_ |= part.packed.has_value();
      has_scales_ |= part.scales != GemmScales::kNone;
    }
  }

  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  int64_t bytes() const override { return memory_.bytes(); }
  DType dtype() const { return dtype_; }
  const std::vector<CudaWeightPart>& parts() const { return parts_; }
  // True if a part is packed.
  bool is_packed() const { return is_packed_; }
  // True if a part has scales.
  bool has_scales() const { return has_scales_; }
  const uint8_t* DataOf(const CudaWeightPart& part) const {
    return static_cast<const uint8_t*>(memory_.data()) + part.offset;
  }
  const float* ScalesOf(const CudaWeightPart& part) const {
    return reinterpret_cast<const float*>(static_cast<const uint8_t*>(memory_.data()) +
                                          part.scales_offset);
  }
  // All rows, row-major. The weight must neither be packed nor have scales.
  const void* data() const {
    QUIRE_CHECK(!is_packed_ && !has_scales_);
    return memory_.data();
  }

 private:
  DeviceBuffer memory_;
  DType dtype_;
  int64_t rows_ = 0;
  int64_t cols_;
  bool is_packed_ = false;
  bool has_scales_ = false;
  std::vector<CudaWeightPart> parts_;
};

}  // namespace quire::kernels::cuda
