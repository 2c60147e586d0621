#pragma once

// The errors of rounding to a dtype.

#include <algorithm>
#include <cmath>

#include "kernels/dtype.h"

namespace quire::testing {

// Returns the largest relative error of one rounding to `dtype`: half the relative distance between
// neighbouring normal numbers.
inline double Rounding(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kF16:
      return 0x1p-11;
    case kernels::DType::kBF16:
      return 0x1p-8;
    case kernels::DType::kF8E4M3:
      return 0x1p-4;
    default:
      return 0x1p-24;
  }
}

// Returns the largest error of rounding `x` to `dtype`. Below the normal numbers, neighbours are
// 2^-24 apart in f16, and 2^-9 in e4m3. Numbers are not so small in the other dtypes.
inline double LargestRounding(kernels::DType dtype, double x) {
  const double least = dtype == kernels::DType::kF16      ? 0x1p-25
                       : dtype == kernels::DType::kF8E4M3 ? 0x1p-10
                                                          : 0.0;
  return std::max(Rounding(dtype) * std::abs(x), least);
}

}  // namespace quire::testing
