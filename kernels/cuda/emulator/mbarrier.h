#pragma once

// An mbarrier is eight bytes of shared memory. It counts the arrivals of threads and the bytes that
// TMA writes, phase by phase. The primitives use the mbarrier functions of runtime.h. This header
// is for other files of the emulator.

#include <cstdint>

#include "kernels/cuda/emulator/where.h"

namespace quire::kernels::cuda::emulator {

// Tells `barrier` that TMA has written `bytes` bytes of its current phase. `where` is the place in
// the kernel that issued the load.
void CompleteBytes(uint64_t* barrier, int64_t bytes, Where where);

}  // namespace quire::kernels::cuda::emulator
