#pragma once

#include <bit>
#include <cstdint>

#include "base/math.h"

namespace quire::kernels {

// Rounds the rows of a matrix product up to 1 .. 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, ...: above
// 4, there are four buckets between a power of two and the next. A backend may choose how to
// compute a product once for all rows of a bucket, and a warm-up runs one step of each.
constexpr int64_t RowBucket(int64_t rows) {
  if (rows <= 4) return rows;
  // Let p be the smallest power of two that is at least `rows`, so p / 2 < rows <= p. With a step
  // of p / 8, there are four buckets in this range.
  const int64_t step = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))) / 8;
  return base::RoundUp(rows, step);
}

}  // namespace quire::kernels
