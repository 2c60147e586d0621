#pragma once

// A warpgroup: four warps that meet for wgmma.

#include <memory>

#include "kernels/cuda/emulator/where.h"

namespace quire::kernels::cuda::emulator {

inline constexpr int kWarpgroupSize = 128;

struct WgmmaQueue;

struct Warpgroup {
  int num_arrived = 0;
  std::shared_ptr<WgmmaQueue> wgmma;
};

// An operation of a whole warpgroup. in[i] is the argument of thread i of the group.
using WarpgroupOperation = void (*)(const void* const* in, Where where);

// Suspends the running thread until all threads of the group have arrived at the same line and the
// last thread has run the operation. With orders_memory, the operation happens before all that the
// threads do next.
void MeetWarpgroup(const void* in, WarpgroupOperation operation, bool orders_memory, Where where);

// Returns the warpgroup of the running thread.
Warpgroup& CurrentWarpgroup();

}  // namespace quire::kernels::cuda::emulator
