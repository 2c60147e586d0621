#pragma once

// The shape of a launch. No CUDA header: the planner and the tests use it too.

#include <cstdint>

namespace quire::kernels::cuda {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

struct LaunchConfig {
  Dim3 grid;
  Dim3 block;
  int64_t shared_bytes = 0;  // dynamic, the only kind (DynamicShared in primitives.cuh)
  // Programmatic dependent launch: the kernel may start while the one before it ends, and must call
  // GridDependencyWait() before it reads that kernel's results.
  bool overlaps_previous = false;
};

}  // namespace quire::kernels::cuda
