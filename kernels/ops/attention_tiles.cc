#include "kernels/ops/attention_tiles.h"

#include <algorithm>

namespace quire::kernels {
namespace {

// Returns a period p: heads h and h + p see the same tiles.
int64_t HeadPeriod(const AttentionPattern& pattern) {
  return pattern.has_holes() && pattern.head_step != 0 ? pattern.stride : 1;
}

// Counts the heads [first_head, first_head + num_heads) that see, from the query at `query`, the
// tile that begins at `key`. A tile after the query counts as seen.
int64_t NumSeeing(const AttentionPattern& pattern, int64_t query, int64_t key, int64_t first_head,
                  int64_t num_heads) {
  int64_t count = 0;
  for (int64_t head = first_head; head < first_head + num_heads; ++head) {
    count += pattern.SeesBlock(query, key, head) ? 1 : 0;
  }
  return count;
}

}  // namespace

std::vector<SeenTile> SeenTiles(const AttentionPattern& pattern, const AttentionRows& rows,
                                int64_t tile_keys) {
  const int64_t num_heads = std::min(rows.num_heads, HeadPeriod(pattern));
  std::vector<SeenTile> tiles;
  const int64_t first = pattern.FirstKey(rows.first_query) / tile_keys;
  for (int64_t tile = first; tile * tile_keys <= rows.last_query; ++tile) {
    const int64_t begin = tile * tile_keys, end = begin + tile_keys;
    bool whole = end <= rows.first_query + 1 && pattern.FirstKey(rows.last_query) <= begin;
    if (pattern.has_holes()) {
      // The first query is nearest to the tiles before it. If it does not see such a tile, no later
      // query sees it.
      if (NumSeeing(pattern, rows.first_query, begin, rows.first_head, num_heads) == 0) continue;
      whole = whole &&
              NumSeeing(pattern, rows.last_query, begin, rows.first_head, num_heads) == num_heads;
    }
    tiles.push_back({.tile = static_cast<int32_t>(tile), .whole = whole});
  }
  return tiles;
}

void TileLists::Clear() {
  tiles_.clear();
  ranges_.clear();
}

TileLists::Range TileLists::Add(const AttentionPattern& pattern, const AttentionRows& rows,
                                int64_t tile_keys) {
  const int64_t first = rows.first_query / tile_keys, last = rows.last_query / tile_keys;
  const auto [at, is_new] =
      ranges_.try_emplace(Key(first, last, rows.first_head % HeadPeriod(pattern), rows.num_heads));
  if (!is_new) return at->second;
  const std::vector<SeenTile> tiles = SeenTiles(pattern,
                                                {.first_query = first * tile_keys,
                                                 .last_query = (last + 1) * tile_keys - 1,
                                                 .first_head = rows.first_head,
                                                 .num_heads = rows.num_heads},
                                                tile_keys);
  at->second.begin = static_cast<int32_t>(tiles_.size());
  tiles_.insert(tiles_.end(), tiles.begin(), tiles.end());
  at->second.end = static_cast<int32_t>(tiles_.size());
  return at->second;
}

}  // namespace quire::kernels
