#pragma once

// How the blocks of an attention kernel get the items of a plan (attention_plan.h).
//
// Without a queue, block b has range b. With a queue, there are more ranges than blocks. A block
// starts with the range of its number, and then draws one range after another until none is left.
// So blocks stay busy although the horizon (attn_horizon.cuh), which the plan does not know, makes
// some ranges short. No block waits for another one. The last block to leave makes the queue ready
// for the next launch.

#include "kernels/cuda/attention/attn_params.h"
#include "kernels/cuda/device/primitives.cuh"

namespace quire::kernels::cuda {

// Returns the range that the block draws next, or -1 if none is left. All threads of the block must
// call this function, and no thread may access the memory of the tiles.
template <typename T>
__device__ __forceinline__ int DrawRange(const AttnParams<T>& p) {
  if (p.queue == nullptr) return -1;
  const auto num_blocks = static_cast<int>(gridDim.x);
  int* const drawn = DynamicShared<int>();
  if (threadIdx.x == 0) *drawn = num_blocks + AtomicAdd(&p.queue->num_drawn, 1);
  __syncthreads();
  const int range = *drawn;
  __syncthreads();  // after this barrier, the memory may be written again
  // Ranges without items are the last ones.
  if (range < p.num_ranges && p.block_starts[range] < p.block_starts[p.num_ranges]) return range;
  if (threadIdx.x == 0 && AtomicAdd(&p.queue->num_left, 1) == num_blocks - 1) {
    AtomicAdd(&p.queue->num_drawn, -AtomicAdd(&p.queue->num_drawn, 0));
    AtomicAdd(&p.queue->num_left, -num_blocks);
  }
  return -1;
}

// Calls attend(i) for each item i of the block. Without kDraws, there is no queue. No register
// keeps the end of a range, because the loops over tiles of keys need almost all registers.
template <bool kDraws, typename T, typename Attend>
__device__ __forceinline__ void ForEachItem(const AttnParams<T>& p, Attend attend) {
  const auto attend_range = [&](unsigned range) {
    for (int i = p.block_starts[range]; i < p.block_starts[range + 1]; ++i) attend(i);
  };
  if constexpr (kDraws) {
    for (auto range = static_cast<int>(blockIdx.x); range >= 0; range = DrawRange(p)) {
      attend_range(static_cast<unsigned>(range));
    }
  } else {
    attend_range(blockIdx.x);
  }
}

}  // namespace quire::kernels::cuda
