#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/math.h"

namespace quire::engine {

// Returns the number of sequences to which a decode step of `num_seqs` sequences is padded, so that
// few recordings serve all decode steps: 1, 2, 4, 8, or a multiple of 8, and at most `max_seqs`.
inline int64_t DecodeBucket(int64_t num_seqs, int64_t max_seqs) {
  const int64_t bucket = num_seqs <= 8
                             ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(num_seqs)))
                             : base::RoundUp(num_seqs, 8);
  return std::min(bucket, max_seqs);
}

}  // namespace quire::engine
