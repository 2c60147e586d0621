#pragma once

// Runs PagedAttentionOp on the cases of attention_testing.h, and checks its results.

#include <cstdint>
#include <vector>

#include "kernels/cuda/paged_attention.h"
#include "tests/kernels/cuda/attention_testing.h"
#include "tests/kernels/cuda/device_testing.h"

namespace quire::testing {

struct AttentionAnswer {
  std::vector<float> out;          // NaN where nothing was written
  std::vector<int32_t> row_tiles;  // of the kernels that ran
  std::vector<int32_t> merges;     // for each sequence, the number of units that were cut
  int32_t num_partial_rows = 0;
};

// Plans and runs the step of `batch`, which was made of `c`.
AttentionAnswer Attend(
    kernels::cuda::Device& device, const AttentionCase& c, const AttentionBatch& batch,
    kernels::cuda::PrefillAttention prefill = kernels::cuda::PrefillAttention::kMma);

struct AttentionCheck {
  uint64_t seed = 1;        // of the random thread order
  double* worst = nullptr;  // if given, is raised to the largest ratio of an error to its bound
  kernels::cuda::PrefillAttention prefill = kernels::cuda::PrefillAttention::kMma;
};

// Runs a case in every thread order. Checks that the bits are the same each time, and compares the
// output with float64.
AttentionAnswer CheckInEveryOrder(const AttentionCase& c, const AttentionCheck& check = {});

}  // namespace quire::testing
