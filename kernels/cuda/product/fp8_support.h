#pragma once

// Asks a device whether it has algorithms for the products of a weight in e4m3.

#include "absl/status/status.h"

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/product/cuda_weight.h"
#include "kernels/device_buffer.h"

namespace quire::kernels::cuda {

// Returns Unimplemented if the device has no algorithm for a product with a part of `weight` that
// has scales: to the dtype of the weight and to float32, added to the output or not, of as many
// tokens as fit into `scratch` with their outputs. Nothing is multiplied, so the weight may still
// lack its content: the products are recorded, and the recording is dropped.
absl::Status CheckFp8Support(Device& device, const CudaWeight& weight, const DeviceBuffer& scratch);

}  // namespace quire::kernels::cuda
