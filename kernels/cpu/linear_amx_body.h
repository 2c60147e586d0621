// Quantised products on AMX tiles, for the AMX path; see kernel_bodies.h. One tile holds the
// integer dot products of 16 rows and 16 outputs over one block of 32 values of k (16 for Q6_K).
// The dot products are exact, and they are folded as in linear_body.h, so the bits are the same as
// on every other path. Apart from the tile instructions, this file uses only simd.h, so a machine
// without AMX can test it with tiles in plain C++.

// The most rows for which a product without tiles is faster; a tile always computes 16 rows.
// Measured by bench/kernels on Sapphire Rapids, for a block of 16 outputs: 8 rows take 17 ns
// without a tile, and a tile takes 30 ns.
constexpr int64_t kMaxRowsWithoutTile = 8;

// The 64 bytes that _tile_loadconfig reads. Tile registers 0 and 1 are for the dot products of 16
// rows, registers 2 and 3 for the activations, and registers 4 and 5 for the codes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

constexpr TileConfig MakeTileConfig(int block_k) {
  TileConfig config;
  for (int i = 0; i < 2; ++i) {
    config.rows[i] = config.rows[2 + i] = 16;
    config.rows[4 + i] = static_cast<uint8_t>(block_k / 4);
    config.row_bytes[i] = config.row_bytes[4 + i] = 64;
    config.row_bytes[2 + i] = static_cast<uint16_t>(block_k);
  }
  return config;
}

// Loads one of two tile configurations, which are constants in memory. In g++ 12, _tile_loadconfig
// declares only 8 of the bytes that it reads. So if a configuration were a local variable, the
// compiler could drop the stores to its other bytes.
inline void ConfigureTiles(int block_k) {
  static constexpr TileConfig kBlock32 = MakeTileConfig(32);
  static constexpr TileConfig kBlock16 = MakeTileConfig(16);
  _tile_loadconfig(block_k == 32 ? &kBlock32 : &kBlock16);
}

// Writes the codes of a group to tile.scratch as signed bytes, with the offset subtracted: 512
// bytes for every 32 k.
template <class Format>
inline void UnpackCodes(const LinearTile& tile, const uint8_t* group) {
  for (int64_t b = 0; b < tile.cols / 32; ++b) {
    const uint8_t* block = group + Format::BlockAt(b);
    uint8_t* out = tile.scratch + b * 512;
#pragma GCC unroll 8
    for (int p = 0; p < 8; ++p) {
      VecB codes = LoadB(block + 64 * (Format::kCodeBits == 4 ? p % 4 : p));
      if constexpr (Format::kCodeBits == 4) {
        codes = p < 4 ? LowNibbles(codes) : HighNibbles(codes);
      }
      StoreB(out + 64 * p, SubB(codes, Format::kOffset));
    }
  }
}

constexpr int kTileRows = 16;
constexpr int kTileInts = kTileRows * kLanes;

// Computes the dot products of tiles `first` and first + 1, or of tile `first` twice if it is the
// last tile. Here, a tile covers the values of k that share a scale: a block of 32, or 16 for Q6_K.
template <class Format>
inline void TwoTileDots(const LinearTile& tile, const QuantizedRows& a, int64_t first, int64_t last,
                        int32_t* dots) {
  constexpr int64_t kPartK = 32 / Format::kParts;
  const auto input = [&](int64_t t) {
    return a.q + 512 * (t / Format::kParts) + kPartK * (t % Format::kParts);
  };
  const auto codes = [&](int64_t t) { return tile.scratch + 16 * kPartK * t; };
  const int64_t second = SmallerOf(first + 1, last);
  _tile_zero(0);
  _tile_loadd(2, input(first), 32);
  _tile_loadd(4, codes(first), 64);
  _tile_dpbssd(0, 2, 4);
  _tile_zero(1);
  _tile_loadd(3, input(second), 32);
  _tile_loadd(5, codes(second), 64);
  _tile_dpbssd(1, 3, 5);
  _tile_stored(0, dots, 64);
  _tile_stored(1, dots + kTileInts, 64);
}

template <class Format>
inline void AmxTile(const LinearTile& tile, const uint8_t* group, const QuantizedRows& a, float* y,
                    int64_t num_rows) {
  VecF acc[kTileRows];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) acc[r] = Zero();
  const auto fold = [&](int64_t t, const int32_t* dots) {
    const int64_t b = t / Format::kParts;
    const uint8_t* scales = group + Format::BlockAt(b) + Format::kCodeBytes;
    const uint8_t* header = group + Format::HeaderAt(b);
    const VecF scale = BlockScale<Format>(header, scales, static_cast<int>(t % Format::kParts));
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      const VecI dot = LoadI(dots + r * kLanes);
      acc[r] = Fma(ToFloat(dot), Mul(scale, Set(a.scale[16 * b + r])), acc[r]);
    }
    if constexpr (Format::kMinimum) {
      const VecF minimum = BlockMinimum<Format>(header, scales);
#pragma GCC unroll 16
      for (int r = 0; r < kTileRows; ++r) {
        acc[r] = Fma(minimum, Set(a.scaled_sum[16 * b + r]), acc[r]);
      }
    }
  };
  // The processor does not forward a tile store to the vector loads of the fold. The loads wait
  // until the stored tile has reached the cache. So the next two tiles are computed and stored
  // before the current two tiles are folded.
  alignas(64) int32_t dots[2][2 * kTileInts];
  const int64_t num_tiles = tile.cols / 32 * Format::kParts;
  TwoTileDots<Format>(tile, a, 0, num_tiles - 1, dots[0]);
  for (int64_t t = 0; t < num_tiles; t += 2) {
    const int32_t* ready = dots[t / 2 % 2];
    if (t + 2 < num_tiles) {
      TwoTileDots<Format>(tile, a, t + 2, num_tiles - 1, dots[(t / 2 + 1) % 2]);
    }
    fold(t, ready);
    if (t + 1 < num_tiles) fold(t + 1, ready + kTileInts);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    if (r < num_rows) Store(y + r * tile.y_stride, acc[r]);
  }
}

template <class Format>
inline void AmxLinear(const LinearTile& tile) {
  // The number of rows left after the whole tiles, or 0 if one more tile computes these rows.
  const int64_t rest = tile.num_rows % 16 <= kMaxRowsWithoutTile ? tile.num_rows % 16 : 0;
  const int64_t tiled = tile.num_rows - rest;
  if (tiled > 0) {
    ConfigureTiles(32 / Format::kParts);
    for (int64_t g = 0; g < tile.num_groups; ++g) {
      const uint8_t* group = tile.groups + g * tile.group_bytes;
      UnpackCodes<Format>(tile, group);
      // In g++ 12, _tile_loadd does not declare that it reads memory. This barrier keeps the stores
      // of UnpackCodes before the loads.
      __asm__ volatile("" ::: "memory");
      for (int64_t row = 0; row < tiled; row += 16) {
        AmxTile<Format>(tile, group, tile.quantized.Rows(row, tile.cols),
                        tile.y + row * tile.y_stride + g * kLanes, SmallerOf(16, tiled - row));
      }
    }
    _tile_release();
  }
  LinearTile last = tile;
  last.num_rows = rest;
  last.quantized = tile.quantized.Rows(tiled, tile.cols);
  last.y = tile.y + tiled * tile.y_stride;
  QuantLinear<Format>(last);
}
