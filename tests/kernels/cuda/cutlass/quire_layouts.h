#pragma once

// The layouts that Quire's kernels and their emulator use, as numbers. layouts.cc compares them
// with CuTe's. They are in a source of their own, because CuTe needs CUDA's headers, and the
// emulator has its own types of the same names.

#include <cstdint>

namespace quire {

// Returns the byte of a tile with `rows` rows at which elements 8 * chunk .. 8 * chunk + 7 of row
// `row` are (TileChunk of staged_tiles.cuh).
int TileByte(int rows, int row, int chunk);

// Returns the byte at which the 128-byte swizzle of the emulator has byte `offset`.
int SwizzledByte(int offset);

// Returns the descriptor of a wgmma operand at byte `offset` of shared memory (WgmmaDescriptor).
uint64_t Descriptor(int offset, int leading_bytes, int stride_bytes);

// The place of accumulator `i` of thread `t` in the tile of a warpgroup, by the emulator.
struct Place {
  int row, col;
};
Place PlaceOfAccumulator(int t, int i);

// Returns the place in a [64][16] of half `i` of the eight that thread `t` of a warpgroup holds in
// the registers of a, by the emulator.
Place PlaceOfRegisterA(int t, int i);

// A lane and one of its elements: of eight of a, four of b, or four of c of mma.m16n8k16.
struct Held {
  int lane, element;
};
// Returns the elements of c that are not 0 if a and b are 1 at one element each and 0 elsewhere, by
// the emulator: at most one. Lane -1: none.
Held ProductOfUnits(Held of_a, Held of_b);

}  // namespace quire
