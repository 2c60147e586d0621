#include "kernels/cuda/emulator/warp_tile.h"

#include "kernels/quant/float16.h"

namespace quire::kernels::cuda::emulator {

float DecodeElement(uint16_t bits, MatrixType type) {
  return type == MatrixType::kBf16 ? Bf16ToF32(bits) : F16ToF32(bits);
}

void MultiplyWarpTile(const WarpTileInput* const* in, float* const* out, MatrixType type) {
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const WarpTileInput& registers = *in[lane];
    for (int half = 0; half < 2; ++half) {
      const auto element = [&](uint32_t pair) {
        return DecodeElement(static_cast<uint16_t>(pair >> (16 * half)), type);
      };
      const int row = lane / 4, col = lane % 4 * 2 + half;
      a[row][col] = element(registers.a[0]);
      a[row + 8][col] = element(registers.a[1]);
      a[row][col + 8] = element(registers.a[2]);
      a[row + 8][col + 8] = element(registers.a[3]);
      b[col][row] = element(registers.b[0]);
      b[col + 8][row] = element(registers.b[1]);
      c[row][col] = registers.c[half];
      c[row + 8][col] = registers.c[2 + half];
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int col = 0; col < 8; ++col) c[row][col] += a[row][k] * b[k][col];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4, col = lane % 4 * 2 + half;
      out[lane][half] = c[row][col];
      out[lane][2 + half] = c[row + 8][col];
    }
  }
}

void SpreadRegistersOfA(const uint32_t (&registers)[4], int t, MatrixType type, float* a) {
  for (int i = 0; i < 8; ++i) {
    const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
    const int col = t % 4 * 2 + i / 4 * 8 + i % 2;
    a[row * 16 + col] =
        DecodeElement(static_cast<uint16_t>(registers[i / 2] >> (16 * (i % 2))), type);
  }
}

void MultiplyWarpgroupTile(const float* a, const float (&b)[16][kMostWgmmaCols], int cols,
                           float (&c)[kWgmmaRows][kMostWgmmaCols]) {
  for (int row = 0; row < kWgmmaRows; ++row) {
    for (int k = 0; k < 16; ++k) {
      const float factor = a[row * 16 + k];
      for (int col = 0; col < cols; ++col) c[row][col] += factor * b[k][col];
    }
  }
}

}  // namespace quire::kernels::cuda::emulator
