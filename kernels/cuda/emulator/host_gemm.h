#pragma once

// The matrix product of the emulated device. It takes the place of cuBLASLt.

#include "kernels/cuda/device.h"

namespace quire::kernels::cuda::emulator {

// Computes the product that `args` describes. The caller has validated `args`. The sums are in
// float32 and run along k in order. Each product of two 16-bit or 8-bit numbers is exact.
void HostGemm(const GemmArgs& args);

}  // namespace quire::kernels::cuda::emulator
