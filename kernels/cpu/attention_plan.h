#pragma once

// CpuAttentionPlan divides the attention of one step into items of a few query tokens and one kv
// head. Query tokens of sequences that share keys (SharedKeys) are in one item for the whole
// segments of these keys, so that the keys are read once for all of them. Sharing changes no bit of
// the results. An item normally covers all keys of its queries. If that would leave threads without
// work, the keys are divided too, and an item covers a range of whole segments. If the pattern has
// holes, an item lists the spans of its segments that its rows see (attention_tiles.h).

#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/ops/attention_tiles.h"
#include "kernels/ops/paged_attention.h"

namespace quire::kernels::cpu {

class CpuAttentionPlan final : public AttentionPlan {
 public:
  struct Item {
    int32_t seq = 0;          // of the block table
    int32_t first_query = 0;  // within the sequence's queries of this step
    int32_t num_queries = 0;
    // If not -1, the queries are those of sequences sharers()[first_sharer] to
    // sharers()[first_sharer + num_queries - 1], one of each.
    int32_t first_sharer = -1;
    int32_t kv_head = 0;
    int32_t segment_begin = 0;
    int32_t segment_end = 0;
    // The item reads the spans tiles()[first_tile] to tiles()[first_tile + num_tiles - 1]. If
    // first_tile is -1, the item reads all spans that its queries see.
    int32_t first_tile = -1;
    int32_t num_tiles = 0;
    int64_t partials = -1;  // offset in floats; -1 if the item covers all segments
    int64_t cost = 0;
  };
  // The states of a row in `num_segments` segments. The state in segment s of the row is at
  // partials + s * stride.
  struct States {
    int64_t partials = 0;
    int64_t stride = 0;
    int32_t num_segments = 0;
  };
  // Rows whose segments are divided between several items. The partial results of these items must
  // be merged: those of the segments that the sequence shares, then its own. The states of row r
  // are r * StateFloats(value_dim) floats after those of row 0, which `shared` and `own` tell.
  struct Merge {
    int32_t seq = 0;
    int32_t first_query = 0;
    int32_t num_queries = 0;
    int32_t kv_head = 0;
    int32_t first_segment = 0;
    States shared;
    States own;
  };

  // Plans the attention of one step for `num_threads` threads. Returns InvalidArgument if Validate
  // refuses `args`.
  absl::Status Build(const AttentionPlanArgs& args, int num_threads);

  const std::vector<Item>& items() const { return items_; }
  const std::vector<Merge>& merges() const { return merges_; }
  const std::vector<SeenTile>& tiles() const { return lists_.tiles(); }
  const std::vector<int32_t>& sharers() const { return sharers_; }
  int64_t partial_floats() const { return partial_floats_; }
  int64_t max_rows() const { return max_rows_; }  // the most rows of any item

 private:
  void AddItems(int32_t seq, int64_t target_cost);
  // Adds the items of keys that several sequences share, and notes in shared_ what AddItems leaves
  // to them.
  void AddShared(const AttentionPlanArgs& args, int64_t target_cost);
  void AddSharers(std::span<const int32_t> seqs, int32_t num_segments, int64_t target_cost);
  // Adds `item`, whose states of all its segments begin at `partials`, in `pieces` items.
  void AddPieces(Item item, int64_t partials, int32_t pieces);
  // Sets the tiles of `item` to those of `list` that are in the item's segments.
  void TakeTiles(const TileLists::Range& list, Item& item) const;

  std::vector<Item> items_;
  std::vector<Merge> merges_;
  std::vector<int32_t> sharers_;
  // By sequence: the states in the segments that it shares, of the first row of KV head 0, and the
  // floats from there to the next KV head.
  struct Shared {
    States states;
    int64_t kv_head_stride = 0;
  };
  std::vector<Shared> shared_;
  TileLists lists_;
  int64_t partial_floats_ = 0;
  int64_t max_rows_ = 0;
};

}  // namespace quire::kernels::cpu
