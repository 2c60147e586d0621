#include "kernels/cuda/emulator/warp_tile.h"

#include "kernels/float16.h"

namespace quire::kernels::cuda::emulator {

namespace {

float Decode(uint16_t bits, MatrixType type) {
  return type == MatrixType::kBf16 ? Bf16ToF32(bits) : F16ToF32(bits);
}

}  // namespace

void MultiplyWarpTile(const WarpTileInput* const* in, float* const* out, MatrixType type) {
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const WarpTileInput& registers = *in[lane];
    for (int half = 0; half < 2; ++half) {
      const auto element = [&](uint32_t pair) {
        return Decode(static_cast<uint16_t>(pair >> (16 * half)), type);
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

}  // namespace quire::kernels::cuda::emulator
