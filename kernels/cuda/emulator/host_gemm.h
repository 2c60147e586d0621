#pragma once

// The matrix product of the emulated device. It takes the place of cuBLASLt.

#include "kernels/cuda/device/device.h"

namespace quire::kernels::cuda::emulator {

// Computes the product that `args` describes. The caller has validated `args`. The sums are in
// float32, and what d had is added last. Each product of two 16-bit or 8-bit numbers is exact.
//
// The order of a sum depends on the bucket of m, on n and k, on the strides and the alignments, on
// the type of the output and on `accumulate`, as with cuBLASLt. Products in which all of these are
// equal give a row the same bits, in whichever place it is.
void HostGemm(const GemmArgs& args);

}  // namespace quire::kernels::cuda::emulator
