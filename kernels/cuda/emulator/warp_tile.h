#pragma once

// The arithmetic of mma.m16n8k16 and wgmma.m64n128k16, separate from the threads.

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

float DecodeElement(uint16_t bits, MatrixType type);

inline constexpr int kWgmmaRows = 64;
inline constexpr int kWgmmaCols = 128;

// The row and column in the tile of accumulator i of thread t of a warpgroup.
inline int WgmmaRow(int t, int i) { return t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8; }
inline int WgmmaCol(int t, int i) { return i / 4 * 8 + t % 4 * 2 + i % 2; }

// Writes the elements of a [64][16] that thread t holds; each warp's part is laid out as the a of
// mma.m16n8k16.
void SpreadRegistersOfA(const uint32_t (&registers)[4], int t, MatrixType type, float* a);

// c += a b, a [64][16].
void MultiplyWarpgroupTile(const float* a, const float (&b)[16][kWgmmaCols],
                           float (&c)[kWgmmaRows][kWgmmaCols]);

}  // namespace quire::kernels::cuda::emulator
