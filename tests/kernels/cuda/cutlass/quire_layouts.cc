#include "tests/kernels/cuda/cutlass/quire_layouts.h"

#include <vector>

#include "kernels/cuda/device/primitives.cuh"
#include "kernels/cuda/device/staged_tiles.cuh"
#include "kernels/cuda/emulator/swizzle.h"
#include "kernels/cuda/emulator/warp_tile.h"

namespace quire::kernels::cuda::emulator {

// Stands in for that of a block, because no block runs here.
unsigned char* SharedMemory() {
  alignas(1024) static unsigned char memory[1 << 18];
  return memory;
}

}  // namespace quire::kernels::cuda::emulator

namespace quire {

namespace cuda = kernels::cuda;
namespace emulator = kernels::cuda::emulator;

namespace {

constexpr uint32_t kOne = 0x3f80;  // in bf16

uint32_t UnitOf(int half) { return kOne << (16 * half); }

}  // namespace

int TileByte(int rows, int row, int chunk) {
  unsigned char* const tile = emulator::SharedMemory();
  return static_cast<int>(cuda::TileChunk(tile, rows, row, chunk) - tile);
}

int SwizzledByte(int offset) { return static_cast<int>(emulator::Swizzle128(offset)); }

uint64_t Descriptor(int offset, int leading_bytes, int stride_bytes) {
  return cuda::WgmmaDescriptor(emulator::SharedMemory() + offset,
                               static_cast<uint32_t>(leading_bytes),
                               static_cast<uint32_t>(stride_bytes));
}

Place PlaceOfAccumulator(int t, int i) {
  return {emulator::WgmmaRow(t, i), emulator::WgmmaCol(t, i)};
}

Place PlaceOfRegisterA(int t, int i) {
  uint32_t registers[4] = {};
  registers[i / 2] = UnitOf(i % 2);
  std::vector<float> a(64 * 16, 0.0f);
  emulator::SpreadRegistersOfA(registers, t, emulator::MatrixType::kBf16, a.data());
  for (int at = 0; at < 64 * 16; ++at) {
    if (a[static_cast<size_t>(at)] == 1.0f) return {at / 16, at % 16};
  }
  return {-1, -1};
}

Held ProductOfUnits(Held of_a, Held of_b) {
  emulator::WarpTileInput inputs[32] = {};
  const emulator::WarpTileInput* in[32];
  float results[32][4];
  float* out[32];
  for (int lane = 0; lane < 32; ++lane) {
    in[lane] = &inputs[lane];
    out[lane] = results[lane];
  }
  inputs[of_a.lane].a[of_a.element / 2] = UnitOf(of_a.element % 2);
  inputs[of_b.lane].b[of_b.element / 2] = UnitOf(of_b.element % 2);
  emulator::MultiplyWarpTile(in, out, emulator::MatrixType::kBf16);
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      if (results[lane][i] != 0.0f) return {lane, i};
    }
  }
  return {-1, -1};
}

}  // namespace quire
