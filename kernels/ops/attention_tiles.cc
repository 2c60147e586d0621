#include "kernels/ops/attention_tiles.h"

#include <algorithm>

namespace quire::kernels {
namespace {

// Returns the number of heads among `num_heads` heads from `first_head` on whose query at `query`
// sees the keys of the tile that begins at `key`, up to its own. The tiles of a head repeat, so
// further heads than one period would count nothing new.
int64_t NumSeeing(const AttentionPattern& pattern, int64_t query, int64_t key, int64_t first_head,
                  int64_t num_heads) {
  int64_t count = 0;
  for (int64_t head = first_head; head < first_head + num_heads; ++head) {
    count += pattern.SeesBlock(query, key, head) ? 1 : 0;
  }
  return count;
}

}  // namespace

int64_t HeadPeriod(const AttentionPattern& pattern) {
  return pattern.has_holes() && pattern.head_step != 0 ? pattern.stride : 1;
}

std::vector<SeenTile> SeenTiles(const AttentionPattern& pattern, const AttentionRows& rows,
                                int64_t tile_keys) {
  const int64_t num_heads = std::min(rows.num_heads, HeadPeriod(pattern));
  std::vector<SeenTile> tiles;
  const int64_t first = pattern.FirstKey(rows.first_query) / tile_keys;
  for (int64_t tile = first; tile * tile_keys <= rows.last_query; ++tile) {
    const int64_t begin = tile * tile_keys, end = begin + tile_keys;
    // Of the queries that are not before the tile, the first one sees the most of it, and the last
    // one the least.
    const int64_t nearest = std::max(rows.first_query, begin);
    if (pattern.FirstKey(nearest) >= end) continue;
    bool whole = end <= rows.first_query + 1 && pattern.FirstKey(rows.last_query) <= begin;
    if (pattern.has_holes()) {
      if (NumSeeing(pattern, nearest, begin, rows.first_head, num_heads) == 0) continue;
      whole = whole &&
              NumSeeing(pattern, rows.last_query, begin, rows.first_head, num_heads) == num_heads;
    }
    tiles.push_back({.tile = static_cast<int32_t>(tile), .whole = whole});
  }
  return tiles;
}

}  // namespace quire::kernels
