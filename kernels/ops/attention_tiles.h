#pragma once

// The tiles of keys that a work item of attention reads, if its pattern has holes. A tile is a run
// of tile_keys keys that begins at a multiple of tile_keys.

#include <cstdint>
#include <vector>

#include "kernels/ops/attention_pattern.h"

namespace quire::kernels {

// The rows of a work item: every query of a range of positions, with every head of a range of query
// heads.
struct AttentionRows {
  int64_t first_query = 0;
  int64_t last_query = 0;  // included
  int64_t first_head = 0;
  int64_t num_heads = 0;  // at least 1
};

struct SeenTile {
  int32_t tile = 0;    // its keys begin at tile * tile_keys
  bool whole = false;  // every row sees every key of the tile
};

// Returns the tiles of which at least one row sees a key, in ascending order. `tile_keys` must
// divide AttentionPattern::kTileKeys.
std::vector<SeenTile> SeenTiles(const AttentionPattern& pattern, const AttentionRows& rows,
                                int64_t tile_keys);

// Returns the heads modulo which the tiles of a head repeat. If two ranges of as many heads begin
// at heads that are equal modulo this number, their rows see the same tiles.
int64_t HeadPeriod(const AttentionPattern& pattern);

}  // namespace quire::kernels
