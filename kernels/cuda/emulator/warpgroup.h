#pragma once

// Four warps that meet for wgmma.

#include <memory>

#include "kernels/cuda/emulator/where.h"

namespace quire::kernels::cuda::emulator {

inline constexpr int kWarpgroupSize = 128;

struct WgmmaQueue;

struct Warpgroup {
  int num_arrived = 0;
  std::shared_ptr<WgmmaQueue> wgmma;
};

// in[i] is what thread i of the group brought.
using WarpgroupOperation = void (*)(const void* const* in, Where where);

// Suspends until all threads of the group are here, at one line, and the last has run the
// operation. With orders_memory: what that one did happens before all that the others do next.
void MeetWarpgroup(const void* in, WarpgroupOperation operation, bool orders_memory, Where where);

// Of the thread that runs.
Warpgroup& CurrentWarpgroup();

}  // namespace quire::kernels::cuda::emulator
