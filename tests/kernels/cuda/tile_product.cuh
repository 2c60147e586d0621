#pragma once

// A minimal kernel that has all parts of a real one. It computes out[m, n] = a[m, k] . b[n, k]^T,
// one 16 x 8 tile per warp. cp.async copies rows of a and b to shared memory in two stages.

#include "kernels/cuda/device/primitives.cuh"

namespace quire::testing {

struct TileProductParams {
  const kernels::cuda::Bf16* a;  // [m, k], k a multiple of 16
  const kernels::cuda::Bf16* b;  // [n, k]
  float* out;                    // [m, n]
  int m, n, k;
};

inline constexpr int kTileRows = 16;
inline constexpr int kTileCols = 8;
inline constexpr int kTileDepth = 16;
// Two stages hold the rows of a and b, at 32 bytes a row.
inline constexpr int kTileSharedBytes = 2 * (kTileRows + kTileCols) * kTileDepth * 2;

// The grid is [m / 16, n / 8], rounded up. Each block has one warp and computes one tile.
__global__ void __launch_bounds__(32)
    TileProductKernel(const __grid_constant__ TileProductParams p) {
  using namespace kernels::cuda;
  constexpr int kRows = kTileRows + kTileCols;
  Bf16* const stages = DynamicShared<Bf16>();
  const int lane = static_cast<int>(threadIdx.x);
  const int first_row = static_cast<int>(blockIdx.x) * kTileRows;
  const int first_col = static_cast<int>(blockIdx.y) * kTileCols;

  const auto load = [&](int step) {
    Bf16* const stage = stages + step % 2 * kRows * kTileDepth;
    for (int chunk = lane; chunk < kRows * 2; chunk += 32) {
      const int row = chunk / 2, offset = chunk % 2 * 8;
      const bool of_a = row < kTileRows;
      const int global_row = of_a ? first_row + row : first_col + row - kTileRows;
      const bool valid = global_row < (of_a ? p.m : p.n);
      const Bf16* const source = of_a ? p.a : p.b;
      CpAsync<16>(stage + row * kTileDepth + offset,
                  source + (valid ? int64_t{global_row} * p.k + step * kTileDepth + offset : 0),
                  valid);
    }
    CpAsyncCommit();
  };

  float c[4] = {};
  const int num_steps = p.k / kTileDepth;
  load(0);
  for (int step = 0; step < num_steps; ++step) {
    if (step + 1 < num_steps) {
      load(step + 1);
      CpAsyncWait<1>();
    } else {
      CpAsyncWait<0>();
    }
    __syncwarp();
    const Bf16* const stage = stages + step % 2 * kRows * kTileDepth;
    uint32_t a[4], b[2];
    LdMatrix(a, stage + (lane % 16) * kTileDepth + lane / 16 * 8);
    LdMatrix(b, stage + (kTileRows + lane % 8) * kTileDepth + lane / 8 % 2 * 8);
    Mma<Bf16>(c, a, b[0], b[1]);
    __syncwarp();  // the next load fills the stage just read
  }
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + lane / 4 + i / 2 * 8;
    const int col = first_col + lane % 4 * 2 + i % 2;
    if (row < p.m && col < p.n) p.out[int64_t{row} * p.n + col] = c[i];
  }
}

}  // namespace quire::testing
