#pragma once

// The arithmetic of mma.m16n8k16, apart from the threads that take part.

#include <cstdint>

#include "kernels/cuda/emulator/runtime.h"

namespace quire::kernels::cuda::emulator {

// One lane's registers: c[16 x 8] in float32, a[16 x 16] row-major, b[16 x 8] column-major.
struct WarpTileInput {
  float c[4];
  uint32_t a[4];
  uint32_t b[2];
};

// c += a b for the fragments of 32 lanes.
void MultiplyWarpTile(const WarpTileInput* const* in, float* const* out, MatrixType type);

}  // namespace quire::kernels::cuda::emulator
