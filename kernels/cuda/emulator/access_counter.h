#pragma once

// Counts what the memory accesses of a kernel's warps cost on a GPU: passes over the banks of
// shared memory, and sectors of global memory.
//
// Only the accesses of primitives are seen: LdMatrix, CpAsync, LoadReadOnly and StoreVector. The
// loads and stores of plain C++ and the accesses of TMA and wgmma are not.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/emulator/runtime.h"
#include "kernels/cuda/emulator/where.h"

namespace quire::kernels::cuda::emulator {

inline constexpr int kNumAccesses = 6;

struct AccessCount {
  int64_t instructions = 0;  // of warps
  int64_t cost = 0;          // passes or sectors
  int64_t least = 0;         // the cost that as many lanes and bytes have at best

  int64_t excess() const { return cost - least; }
};

// The counts of all launches of a kernel.
class AccessCounts {
 public:
  AccessCount& operator[](Access access) { return counts_[static_cast<size_t>(access)]; }

 private:
  std::array<AccessCount, kNumAccesses> counts_;
};

// The part of one lane in an instruction.
struct LaneAccess {
  uintptr_t address = 0;
  int bytes = 0;  // 0: the lane takes no part
};
// Adds the instruction of a warp to `count`.
void CountInstruction(Access access, std::span<const LaneAccess, 32> lanes, AccessCount& count);

// The accesses of one warp since its lanes met last. Lanes do not run in lockstep here. So the n-th
// access of each lane at one line since the lanes met counts as one instruction.
class WarpAccesses {
 public:
  void Add(Access access, int lane, const void* address, int bytes, Where where);
  // Called when the lanes of the warp have met.
  void CountInto(AccessCounts& counts);

 private:
  struct Site {
    Access access;
    Where where;
    std::array<size_t, 32> num_accesses = {};
    std::vector<std::array<LaneAccess, 32>> instructions = {};
  };

  std::vector<Site> sites_;
};

}  // namespace quire::kernels::cuda::emulator
