#pragma once

// The tiles of keys that a work item of attention reads, if its pattern has holes. A tile is a run
// of tile_keys keys that begins at a multiple of tile_keys.

#include <cstdint>
#include <map>
#include <tuple>
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

// The lists of seen tiles of one step. Work whose rows see the same tiles shares a list.
class TileLists {
 public:
  // Entries [begin, end) of tiles().
  struct Range {
    int32_t begin = 0;
    int32_t end = 0;
  };

  void Clear();
  // Returns the list of `rows`, for a pattern with holes. The pattern and tile_keys must be the
  // same in all calls after Clear. Queries in the same tile share a list. Not all see all keys of
  // that tile, so it never counts as whole.
  Range Add(const AttentionPattern& pattern, const AttentionRows& rows, int64_t tile_keys);

  const std::vector<SeenTile>& tiles() const { return tiles_; }

 private:
  // The tile of the first query, the tile of the last query, the first head modulo HeadPeriod
  // (attention_tiles.cc), and the number of heads.
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t>;

  std::vector<SeenTile> tiles_;
  std::map<Key, Range> ranges_;
};

}  // namespace quire::kernels
