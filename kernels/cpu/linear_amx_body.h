// Quantised products on AMX tiles, for the AMX path; see kernel_bodies.h. The integer dots of a
// block of 32 k (16 for Q6_K) for 16 rows and 16 outputs are one tile; they are exact, and the fold
// is linear_body.h's, so the bits are those of every other path.

// A tile has 16 rows; up to so many are done sooner without one (bench/kernels, Sapphire Rapids:
// 8 rows 17 ns a block of 16 outputs, a tile 30).
constexpr int64_t kMaxRowsWithoutTile = 8;

// Tile 0: dots of 16 rows; 1: their activations; 2: codes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

constexpr TileConfig MakeTileConfig(int block_k) {
  TileConfig config;
  config.rows[0] = config.rows[1] = 16;
  config.rows[2] = static_cast<uint8_t>(block_k / 4);
  config.row_bytes[0] = config.row_bytes[2] = 64;
  config.row_bytes[1] = static_cast<uint16_t>(block_k);
  return config;
}

// Constants in memory: g++ 12's _tile_loadconfig tells the compiler of 8 bytes that it reads, and
// stores to the rest of a local one may be dropped.
inline void ConfigureTiles(int block_k) {
  static constexpr TileConfig kBlock32 = MakeTileConfig(32);
  static constexpr TileConfig kBlock16 = MakeTileConfig(16);
  _tile_loadconfig(block_k == 32 ? &kBlock32 : &kBlock16);
}

// The group's codes as signed bytes, offset taken off: 512 for every 32 k.
template <class Format>
inline void UnpackCodes(const LinearTile& tile, const uint8_t* group) {
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(Format::kOffset));
  for (int64_t b = 0; b < tile.cols / 32; ++b) {
    const uint8_t* block = group + Format::BlockAt(b);
    uint8_t* out = tile.scratch + b * 512;
#pragma GCC unroll 8
    for (int p = 0; p < 8; ++p) {
      VecB codes = LoadB(block + 64 * (Format::kCodeBits == 4 ? p % 4 : p));
      if constexpr (Format::kCodeBits == 4) {
        codes = p < 4 ? LowNibbles(codes) : HighNibbles(codes);
      }
      _mm512_store_si512(out + 64 * p, _mm512_sub_epi8(codes.v, offset));
    }
  }
}

template <class Format>
inline void AmxTile(const LinearTile& tile, const uint8_t* group, const QuantizedRows& a, float* y,
                    int64_t num_rows) {
  constexpr int kRows = 16;
  VecF acc[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) acc[r] = Zero();
  alignas(64) int32_t dots[2][kRows * kLanes];
  const int64_t num_blocks = tile.cols / 32;
  constexpr int kPartK = 32 / Format::kParts;
  for (int64_t b = 0; b < num_blocks; ++b) {
    const uint8_t* scales = group + Format::BlockAt(b) + Format::kCodeBytes;
    const uint8_t* header = group + Format::HeaderAt(b);
#pragma GCC unroll 2
    for (int part = 0; part < Format::kParts; ++part) {
      int32_t* d = dots[(b + part) % 2];
      _tile_zero(0);
      _tile_loadd(1, a.q + 512 * b + kPartK * part, 32);
      _tile_loadd(2, tile.scratch + 512 * b + 16 * kPartK * part, 64);
      _tile_dpbssd(0, 1, 2);
      _tile_stored(0, d, 64);
      const VecF scale = BlockScale<Format>(header, scales, part);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const VecI dot = {_mm512_load_si512(d + r * kLanes)};
        acc[r] = Fma(ToFloat(dot), Mul(scale, Set(a.scale[16 * b + r])), acc[r]);
      }
    }
    if constexpr (Format::kMinimum) {
      const VecF minimum = BlockMinimum<Format>(header, scales);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        acc[r] = Fma(minimum, Set(a.scaled_sum[16 * b + r]), acc[r]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    if (r < num_rows) Store(y + r * tile.y_stride, acc[r]);
  }
}

template <class Format>
inline void AmxLinear(const LinearTile& tile) {
  // What is left after whole tiles, where it is too little for one.
  const int64_t rest = tile.num_rows % 16 <= kMaxRowsWithoutTile ? tile.num_rows % 16 : 0;
  const int64_t tiled = tile.num_rows - rest;
  if (tiled > 0) {
    ConfigureTiles(32 / Format::kParts);
    for (int64_t g = 0; g < tile.num_groups; ++g) {
      const uint8_t* group = tile.groups + g * tile.group_bytes;
      UnpackCodes<Format>(tile, group);
      // g++ 12's _tile_loadd does not say that it reads memory.
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
