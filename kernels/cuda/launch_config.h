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
  int64_t shared_bytes = 0;  // dynamic; there is no other (DynamicShared in primitives.cuh)
  // Programmatic dependent launch: may start while the kernel before it ends, and calls
  // GridDependencyWait() before it reads what that one wrote.
  bool overlaps_previous = false;
};

}  // namespace quire::kernels::cuda
