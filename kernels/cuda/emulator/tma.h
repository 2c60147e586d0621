#pragma once

// The tensor map of the emulated device, and the loads that read it.

#include "kernels/cuda/tensor_map.h"

namespace quire::kernels::cuda::emulator {

// `spec` has been validated.
TensorMap EncodeTensorMap(const TensorMapSpec& spec);

}  // namespace quire::kernels::cuda::emulator
