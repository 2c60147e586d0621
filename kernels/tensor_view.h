#pragma once

// A TensorView is a borrowed, shaped piece of memory that a backend can read. It is row-major and
// contiguous, except that the rows of the first dimension may be strided where an op allows it.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/dtype.h"

namespace quire::kernels {

class TensorView {
 public:
  static constexpr int kMaxRank = 5;

  TensorView() = default;  // an empty view: an absent optional argument
  TensorView(void* data, DType dtype, std::initializer_list<int64_t> shape)
      : data_(data), dtype_(dtype) {
    for (const int64_t dim : shape) shape_[rank_++] = dim;
    row_stride_ = RowElements();
  }

  bool empty() const { return data_ == nullptr; }
  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }
  int64_t dim(int i) const { return shape_[i]; }
  int64_t num_elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= shape_[i];
    return rank_ == 0 ? 0 : n;
  }
  int64_t num_bytes() const { return num_elements() * SizeOf(dtype_); }
  // The distance between adjacent rows of the first dimension, in elements.
  int64_t row_stride() const { return row_stride_; }
  bool contiguous() const { return rank_ == 0 || row_stride_ == RowElements(); }

  void* raw() const { return data_; }
  template <typename T>
  T* data() const {
    return static_cast<T*>(data_);
  }

  // Returns this view with a row stride of `elements`, which must be at least the elements of one
  // row.
  TensorView WithRowStride(int64_t elements) const;
  // Returns rows [begin, begin + count) of the first dimension.
  TensorView Rows(int64_t begin, int64_t count) const;
  // Returns the dtype and shape for an error message, such as "f32 [8, 64]".
  std::string ToString() const;

 private:
  int64_t RowElements() const {
    int64_t n = 1;
    for (int i = 1; i < rank_; ++i) n *= shape_[i];
    return n;
  }

  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int rank_ = 0;
  std::array<int64_t, kMaxRank> shape_{};
  int64_t row_stride_ = 0;
};

}  // namespace quire::kernels
