#pragma once

// mbarriers: eight bytes of shared memory that count arrivals of threads and bytes of TMA, phase by
// phase. The primitives call runtime.h; this header is for the emulator's own units.

#include <cstdint>

#include "kernels/cuda/emulator/where.h"

namespace quire::kernels::cuda::emulator {

// Reports that TMA has written `bytes` for the current phase; `where` is the place of the issue.
void CompleteBytes(uint64_t* barrier, int64_t bytes, Where where);

}  // namespace quire::kernels::cuda::emulator
