#pragma once

// The arithmetic of mma.m16n8k16 and wgmma.m64nNk16. The callers in warp.cc and wgmma.cc first
// wait until all threads have arrived.

#include <cstdint>

#include "kernels/cuda/emulator/runtime.h"

namespace quire::kernels::cuda::emulator {

// One lane's registers of the matrices of mma.m16n8k16: c [16 x 8] in float32, a [16 x 16]
// row-major, b [16 x 8] column-major.
struct WarpTileInput {
  float c[4];
  uint32_t a[4];
  uint32_t b[2];
};

// Computes c + a b from the registers of 32 lanes, and writes lane l's part to out[l].
void MultiplyWarpTile(const WarpTileInput* const* in, float* const* out, MatrixType type);

float DecodeElement(uint16_t bits, MatrixType type);

inline constexpr int kWgmmaRows = 64;
inline constexpr int kMostWgmmaCols = 256;

// Return the row and the column of the tile element in accumulator i of thread t of a warpgroup.
inline int WgmmaRow(int t, int i) { return t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8; }
inline int WgmmaCol(int t, int i) { return i / 4 * 8 + t % 4 * 2 + i % 2; }

// Writes to a[64][16] the elements that thread t of a warpgroup holds in registers. Each warp holds
// 16 rows, in the register layout of the matrix a of mma.m16n8k16.
void SpreadRegistersOfA(const uint32_t (&registers)[4], int t, MatrixType type, float* a);

// Computes c += a b in the first `cols` columns. The matrix a is [64][16].
void MultiplyWarpgroupTile(const float* a, const float (&b)[16][kMostWgmmaCols], int cols,
                           float (&c)[kWgmmaRows][kMostWgmmaCols]);

}  // namespace quire::kernels::cuda::emulator
