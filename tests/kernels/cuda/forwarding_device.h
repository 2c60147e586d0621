#pragma once

// The base of devices that count or change what a test enqueues.

#include "kernels/cuda/forwarding_device.h"

namespace quire::testing {

using kernels::cuda::ForwardingDevice;

}  // namespace quire::testing
