#pragma once

// Weights in the form that the CPU kernels read: see packed_format.h.

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/device_buffer.h"
#include "kernels/prepared_weight.h"
#include "kernels/quant/weight_view.h"

namespace quire::kernels::cpu {

// Returns the number of bytes of one group of 16 rows.
int64_t GroupBytes(WeightType type, int64_t cols);

// Packs rows [16 * group, 16 * group + 16) of `weight` into the GroupBytes bytes at `out`.
void PackGroup(const WeightView& weight, int64_t group, uint8_t* out);

// Writes row `row` of a packed part as float32. The values are exactly those that Dequantize
// computes from the bytes of the file.
void UnpackRow(WeightType type, int64_t cols, const uint8_t* groups, int64_t row, float* out);

// A run of rows of one type inside a stacked weight.
struct WeightPart {
  WeightView view;        // `bytes` is empty unless mapped
  int64_t first_row = 0;  // in the stack
  int64_t group_bytes = 0;
  const uint8_t* packed = nullptr;  // null when mapped; then groups are packed at each use

  int64_t num_groups() const { return (view.rows + 15) / 16; }
};

class PackedWeight final : public PreparedWeight {
 public:
  // `parts` must be valid (ValidateWeight) and have equal cols. With `pack`, the bytes of the parts
  // are not read after Create returns. Without `pack`, the bytes must outlive the weight. Returns
  // ResourceExhausted when memory is short.
  static absl::StatusOr<std::unique_ptr<PackedWeight>> Create(std::span<const WeightView> parts,
                                                              bool pack);

  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  int64_t bytes() const override { return memory_.bytes(); }

  std::span<const WeightPart> parts() const { return parts_; }
  bool has_quantized() const { return has_quantized_; }
  int64_t max_group_bytes() const { return max_group_bytes_; }

 private:
  std::vector<WeightPart> parts_;
  DeviceBuffer memory_;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  int64_t max_group_bytes_ = 0;
  bool has_quantized_ = false;
};

}  // namespace quire::kernels::cpu
