#pragma once

// The emulated device's matrix product, which replaces cuBLASLt.

#include "kernels/cuda/device.h"

namespace quire::kernels::cuda::emulator {

// `args` have been validated. Adds along k in order; each product of 16-bit numbers is exact.
void HostGemm(const GemmArgs& args);

}  // namespace quire::kernels::cuda::emulator
