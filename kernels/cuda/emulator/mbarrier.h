#pragma once

// mbarriers: eight bytes of shared memory that count arrivals of threads and bytes of TMA, phase by
// phase. What the primitives call is in runtime.h; this is for the emulator's own hardware.

#include <cstdint>

#include "kernels/cuda/emulator/where.h"

namespace quire::kernels::cuda::emulator {

// TMA has written `bytes` for the current phase; `where` it was issued.
void CompleteBytes(uint64_t* barrier, int64_t bytes, Where where);

}  // namespace quire::kernels::cuda::emulator
