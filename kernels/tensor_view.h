#pragma once

// A borrowed, shaped piece of memory that a backend can read. Row-major, last dimension contiguous.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/dtype.h"

namespace quire::kernels {

class TensorView {
 public:
  static constexpr int kMaxRank = 5;

  TensorView() = default;  // empty: an absent optional argument
  TensorView(void* data, DType dtype, std::initializer_list<int64_t> shape)
      : data_(data), dtype_(dtype) {
    for (const int64_t dim : shape) shape_[rank_++] = dim;
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

  void* raw() const { return data_; }
  template <typename T>
  T* data() const {
    return static_cast<T*>(data_);
  }

  // Rows [begin, begin + count) of the first dimension.
  TensorView Rows(int64_t begin, int64_t count) const;
  // "f32 [8, 64]", for errors.
  std::string ToString() const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int rank_ = 0;
  std::array<int64_t, kMaxRank> shape_{};
};

}  // namespace quire::kernels
