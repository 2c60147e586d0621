#pragma once

// The tensor map of the emulated device. LoadTensor (runtime.h) reads it.

#include "kernels/cuda/device/tensor_map.h"

namespace quire::kernels::cuda::emulator {

// Returns the tensor map for `spec`, which the caller has validated.
TensorMap EncodeTensorMap(const TensorMapSpec& spec);

}  // namespace quire::kernels::cuda::emulator
