#pragma once

// mbarriers: eight bytes of shared memory that count arrivals of threads and bytes of TMA, phase by
// phase. The primitives call runtime.h; this header is for the emulator's own units.

#include <cstdint>

#include "kernels/cuda/emulator/where.h"

namespace quire::kernels::cuda::emulator {

// Tells the mbarrier that TMA has written `bytes` bytes of its current phase. `where` is the place
// in the source that issued the copy.
void CompleteBytes(uint64_t* barrier, int64_t bytes, Where where);

}  // namespace quire::kernels::cuda::emulator
