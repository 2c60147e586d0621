#pragma once

// Tiles of a cache of E4M3 that are widened in shared memory. A thread widens the codes that it has
// copied itself, so it waits for no other thread before.

#include <bit>
#include <cstdint>

#include "kernels/cuda/attention/attn_shape.cuh"
#include "kernels/cuda/attention/attn_tiles.cuh"
#include "kernels/cuda/attention/widen_fp8.cuh"

namespace quire::kernels::cuda {

// The members of a Shape that TileLoader uses, for tiles of kTileKeys keys.
template <int kHeadDimension, int kTileKeys>
struct CodeShape {
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr int kKeys = kTileKeys;
  static constexpr int kElementBytes = sizeof(E4M3);
  static constexpr int kChunks = kHeadDim / 16;
};

// The codes of one item that kAttnThreads threads copy and widen. A slot holds the codes of kParts
// tiles: of keys and of values (2), or of either (1).
template <int kHeadDim, int kKeys, int kParts>
class CodeTiles {
 public:
  static constexpr int kSlotBytes = kParts * kKeys * kHeadDim;

  // `thread` is one of kAttnThreads. `slots` is shared memory.
  template <typename T>
  __device__ __forceinline__ CodeTiles(const AttnParams<T>& p, const AttentionItem& item,
                                       int thread, uint4* slots)
      : loader_(p, item, PlaceOf(thread)), codes_(slots + thread) {}

  // If `wanted`, starts to copy the codes of the tile whose first key is `tile_begin`; with one
  // part, those of its values if `values`. Keys that are not the item's become zeros.
  __device__ __forceinline__ void Copy(int tile_begin, int slot, bool wanted,
                                       bool values = false) const {
    uint4* to = codes_ + slot * kSlotChunks;
    const int64_t first_part = values ? loader_.value_offset : 0;
    uint32_t block[Loader::kLookups];
    loader_.LookUp(tile_begin, block);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = i * Loader::kRowsApart, lookup = row / Loader::kRowsPerLookup;
      const int in_lookup = row % Loader::kRowsPerLookup;
      const int key = tile_begin + loader_.row() + row;
      const E4M3* const from =
          loader_.Place(key - in_lookup, block[lookup]) + first_part + in_lookup * kHeadDim;
      const bool valid = loader_.IsValid(key);
      CpAsyncIf(wanted, to, from, valid);
      if constexpr (kParts == 2) {
        CpAsyncIf(wanted, to + kAttnThreads, from + loader_.value_offset, valid);
      }
      to += kParts * kAttnThreads;
    }
    CpAsyncCommit();
  }

  // Widens the codes of a slot, whose copies by this thread are complete. place(part, row, offset,
  // chunk) is where 8 elements of row + offset of a tile go, from element 8 * chunk on. `offset` is
  // known to the compiler and a multiple of 8.
  template <typename T, typename Place>
  __device__ __forceinline__ void Widen(int slot, const Place& place) const {
    const int row = loader_.row(), chunk = loader_.chunk() * 2;
    WidenChunks<T, kParts * kRows>(codes_ + slot * kSlotChunks, kAttnThreads, [&](int i, int half) {
      return place(i % kParts, row, i / kParts * Loader::kRowsApart, chunk + half);
    });
  }

 private:
  using Loader = TileLoader<E4M3, CodeShape<kHeadDim, kKeys>>;
  static constexpr int kRows = kKeys / Loader::kRowsApart;  // of a thread
  static constexpr int kSlotChunks = kSlotBytes / 16;
  static_assert(Loader::kRowsApart % 8 == 0);
  static_assert(std::has_single_bit(unsigned{kHeadDim}) && kHeadDim >= 64);

  // Returns the thread of TileLoader whose chunks this thread copies: the bit that tells odd rows
  // is swapped with bit 2. So eight threads that store at once have four adjacent chunks of two
  // adjacent rows. Of the wide chunks they store every other one, which have different banks.
  __device__ __forceinline__ static int PlaceOf(int thread) {
    constexpr int kOddRow = kHeadDim / 16;
    const int kept = thread & ~(kOddRow | 4);
    return kept | ((thread & 4) != 0 ? kOddRow : 0) | ((thread & kOddRow) != 0 ? 4 : 0);
  }

  const Loader loader_;
  uint4* const codes_;  // the thread's first ones
};

}  // namespace quire::kernels::cuda
