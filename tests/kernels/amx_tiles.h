#pragma once

// Emulates, in plain C++, the AMX instructions that kernels/cpu/linear_amx_body.h uses. The tiles
// follow palette 1 of Intel's manual. A check fails where the processor would fault.

#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace quire::kernels::cpu {

struct AmxTiles {
  static constexpr int kTiles = 8, kMaxRows = 16, kMaxRowBytes = 64;

  // The configuration in the layout that _tile_loadconfig reads.
  struct Config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  static_assert(sizeof(Config) == 64);

  Config config = {};
  uint8_t data[kTiles][kMaxRows][kMaxRowBytes] = {};

  void Check(int tile) const {
    QUIRE_CHECK(config.palette == 1 && tile >= 0 && tile < kTiles);
    QUIRE_CHECK(config.rows[tile] > 0 && config.rows[tile] <= kMaxRows);
    QUIRE_CHECK(config.row_bytes[tile] > 0 && config.row_bytes[tile] <= kMaxRowBytes);
  }
};

// Returns the tile registers of the calling thread.
inline AmxTiles& Tiles() {
  static thread_local AmxTiles tiles;
  return tiles;
}

inline void _tile_loadconfig(const void* config) {
  Tiles() = {};
  std::memcpy(&Tiles().config, config, sizeof(AmxTiles::Config));
}

inline void _tile_release() { Tiles() = {}; }

inline void _tile_zero(int tile) {
  Tiles().Check(tile);
  std::memset(Tiles().data[tile], 0, sizeof(Tiles().data[tile]));
}

inline void _tile_loadd(int tile, const void* base, int64_t stride) {
  _tile_zero(tile);
  for (int r = 0; r < Tiles().config.rows[tile]; ++r) {
    std::memcpy(Tiles().data[tile][r], static_cast<const uint8_t*>(base) + r * stride,
                Tiles().config.row_bytes[tile]);
  }
}

inline void _tile_stored(int tile, void* base, int64_t stride) {
  Tiles().Check(tile);
  for (int r = 0; r < Tiles().config.rows[tile]; ++r) {
    std::memcpy(static_cast<uint8_t*>(base) + r * stride, Tiles().data[tile][r],
                Tiles().config.row_bytes[tile]);
  }
}

// Adds a[m][4 k + i] * b[k][4 n + i], summed over k and i, to c[m][n]. The elements of a and b are
// signed bytes. The elements of c are 32-bit integers.
inline void _tile_dpbssd(int c, int a, int b) {
  AmxTiles& tiles = Tiles();
  for (const int tile : {a, b, c}) tiles.Check(tile);
  const AmxTiles::Config& config = tiles.config;
  QUIRE_CHECK(a != b && b != c && c != a);
  QUIRE_CHECK(config.rows[c] == config.rows[a] && config.row_bytes[c] == config.row_bytes[b] &&
              config.row_bytes[a] == 4 * config.rows[b]);
  for (int m = 0; m < config.rows[c]; ++m) {
    for (int n = 0; n < config.row_bytes[c] / 4; ++n) {
      int32_t sum;
      std::memcpy(&sum, &tiles.data[c][m][4 * n], sizeof(sum));
      for (int k = 0; k < config.rows[b]; ++k) {
        for (int i = 0; i < 4; ++i) {
          sum += int32_t{static_cast<int8_t>(tiles.data[a][m][4 * k + i])} *
                 int32_t{static_cast<int8_t>(tiles.data[b][k][4 * n + i])};
        }
      }
      std::memcpy(&tiles.data[c][m][4 * n], &sum, sizeof(sum));
    }
  }
}

}  // namespace quire::kernels::cpu
