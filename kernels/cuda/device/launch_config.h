#pragma once

// The shape of a kernel launch. This header includes no CUDA header, because code that is compiled
// without CUDA uses it too.

#include <cstdint>

namespace quire::kernels::cuda {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

struct LaunchConfig {
  Dim3 grid;
  Dim3 block;
  int64_t shared_bytes = 0;  // dynamic; kernels have no static shared memory (launch.h)
  // With programmatic dependent launch, the kernel may start before the previous kernel has ended.
  // It must call GridDependencyWait() before it reads the results of the previous kernel.
  bool overlaps_previous = false;
};

}  // namespace quire::kernels::cuda
