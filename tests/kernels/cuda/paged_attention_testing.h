#pragma once

// Runs PagedAttentionOp on the cases of attention_testing.h, and checks its results.

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "kernels/cuda/attention/paged_attention.h"
#include "tests/kernels/cuda/attention_testing.h"
#include "tests/kernels/cuda/device_testing.h"

namespace quire::testing {

struct AttentionAnswer {
  std::vector<float> out;       // NaN where nothing was written
  std::set<int32_t> row_tiles;  // of the items of AttnKernel
  bool prefill = false;         // whether PrefillAttnKernel ran
  size_t num_parts = 0;         // launches of the two
  std::vector<int32_t> merges;  // for each sequence, the number of units that were cut
  int32_t num_partial_rows = 0;
  int64_t keys = 0;         // that all items read; without those of listed tiles
  int64_t shared_keys = 0;  // of them, those that items read for several sequences
};

// Plans and runs the step of `batch`, which was made of `c`.
AttentionAnswer Attend(
    kernels::cuda::Device& device, const AttentionCase& c, const AttentionBatch& batch,
    kernels::cuda::MatrixInstruction prefill = kernels::cuda::MatrixInstruction::kMma);

struct AttentionCheck {
  uint64_t seed = 1;        // of the random thread order
  double* worst = nullptr;  // if given, is raised to the largest ratio of an error to its bound
  kernels::cuda::MatrixInstruction prefill = kernels::cuda::MatrixInstruction::kMma;
};

// Runs a case in every thread order. Checks that the bits are the same each time, and compares the
// output with float64.
AttentionAnswer CheckInEveryOrder(const AttentionCase& c, const AttentionCheck& check = {});

// Checks that a sequence of `c`, which has a fixed split that cuts it, has the same bits alone as
// among the others, whose answer is `among`. The seed chooses the thread order.
void CheckSameAlone(const AttentionCase& c, size_t sequence, const AttentionAnswer& among,
                    const AttentionCheck& check = {});

// Returns cases at the borders of what the op does.
std::vector<AttentionCase> ChosenAttentionCases();

// Returns a step with one sequence whose queries make `num_rows` rows or, if the group does not
// divide them, a few more.
AttentionCase WithRows(int32_t num_rows, int32_t group, int32_t head_dim);

// Returns cases with items of 8 row tiles and every feature, beside smaller items.
std::vector<AttentionCase> WideAttentionCases(std::span<const int32_t> head_dims);

// Returns `c` with a cache of e4m3 and these scales, and a scale with which the scores of random
// keys are about as large as usual.
AttentionCase WithScales(AttentionCase c, const kernels::CacheScales& scales);
// Returns scales by `i` modulo their number, of which one is 1. No other is a power of two.
kernels::CacheScales SomeCacheScales(uint64_t i);

struct RandomAttention {
  AttentionCase attention;
  // The index of the sequence whose query length requires the row tile of the seed. With a fixed
  // split, its context is long enough to be cut into pieces.
  size_t pinned = 0;
};

// Chooses head_dim, block_size and row tile by `seed` modulo their numbers; there are 4
// block_sizes. The dtype alternates from seed to seed, and the alternation is reversed every 4 *
// head_dims seeds. So 8 * head_dims seeds give every combination of head_dim, block_size and dtype,
// if the number of head_dims is odd, and 12 * head_dims seeds every combination of head_dim, row
// tile and dtype, if there are three row tiles.
RandomAttention RandomAttentionCase(uint64_t seed, std::span<const int32_t> head_dims,
                                    std::span<const int32_t> row_tiles);

}  // namespace quire::testing
