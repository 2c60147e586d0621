#pragma once

// Tiles of 16-bit elements in shared memory, as TMA writes and wgmma reads them with the swizzle of
// 128 bytes, and the stages through which they go from the threads that fetch to those that
// multiply.
//
// The swizzle covers 64 elements of a row, so a tile is stored in pieces of 64 columns: piece 0
// with all its rows, then piece 1. In a piece, a row has 128 bytes. Its 16-byte chunks are xored
// with the row modulo 8.

#include "kernels/cuda/device/primitives.cuh"

namespace quire::kernels::cuda {

// The stage of the next tile. The threads that fetch and those that multiply each count the tiles
// of all the work of the block, so a stage means the same tile to all of them.
template <int kStages>
struct TileStage {
  int index = 0;
  int parity = 0;  // of the phase in which the stage becomes full

  __device__ __forceinline__ void Advance() {
    index = index + 1 < kStages ? index + 1 : 0;
    if (index == 0) parity ^= 1;
  }
};

// Returns the address of 16 bytes of a tile with `rows` rows: eight elements of row `row`, from
// element 8 * chunk on.
__device__ __forceinline__ unsigned char* TileChunk(unsigned char* tile, int rows, int row,
                                                    int chunk) {
  return tile + (chunk / 8 * rows + row) * 128 + ((chunk % 8) ^ (row % 8)) * 16;
}

}  // namespace quire::kernels::cuda
