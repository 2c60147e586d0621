#include "kernels/cuda/attention/attention_plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <span>

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/ops/check.h"

namespace quire::kernels::cuda {
namespace {

using base::CeilDiv;

// Returns the most rows of a decode's unit and, with a fixed split, of every unit.
int32_t MostDecodeRows(int32_t head_dim, const AttentionPlanOptions& options) {
  return options.fixed_split ? 16 * ItemRowTiles(1, head_dim) : kMostItemRows;
}

// Returns the tiles from one cut of a fixed split to the next.
int32_t PieceTiles(int32_t head_dim, const AttentionPlanOptions& options) {
  return options.fixed_split_keys / AttentionTileKeys(head_dim);
}

// Returns the next power of two, so that few recordings serve all steps.
int64_t RoundUpToFewSizes(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
}

// If an item lists its tiles, its first and end tile are positions in the list.
int32_t FirstTile(const AttentionItem& item, int32_t tile_keys) {
  return item.num_tiles > 0 ? item.first_tile : item.key_begin / tile_keys;
}
int32_t EndTile(const AttentionItem& item, int32_t tile_keys) {
  return item.num_tiles > 0 ? item.first_tile + item.num_tiles : CeilDiv(item.key_end, tile_keys);
}
int32_t NumTiles(const AttentionItem& item, int32_t tile_keys) {
  return EndTile(item, tile_keys) - FirstTile(item, tile_keys);
}

// Returns the most pieces of a unit of a fixed split, in a sequence of up to args.most_context_len
// keys.
int64_t MostPieces(const AttentionPlanArgs& args, const AttentionPlanOptions& options) {
  // A unit has up to unit_rows queries, the first of which sees up to MostKept keys. Such a run of
  // keys may begin and end inside a piece.
  const int64_t unit_rows = MostDecodeRows(args.heads.value_dim, options);
  const int64_t seen = args.pattern.MostKept(args.most_context_len) + unit_rows;
  const int64_t keys = options.fixed_split_keys;
  return std::min(CeilDiv(args.most_context_len, keys), CeilDiv(seen, keys) + 1);
}

// LargestPlan for a fixed split.
PlanSizes LargestFixedSplit(const AttentionPlanArgs& args, const AttentionPlanOptions& options) {
  const int64_t group = args.heads.num_heads / args.heads.num_kv_heads;
  const int64_t unit_rows = MostDecodeRows(args.heads.value_dim, options);
  const int64_t pieces = MostPieces(args, options);
  const int64_t units =
      args.heads.num_kv_heads * (args.most_seqs + CeilDiv(args.most_tokens * group, unit_rows));
  // The device makes the plan of a decode step, which has one part.
  const int64_t decode_items =
      args.most_seqs * args.heads.num_kv_heads * CeilDiv(group, unit_rows) * pieces;
  // Two adjacent parts have more than part_rows partial rows.
  const int64_t rows = args.most_tokens * args.heads.num_heads * pieces;
  const int64_t parts = std::min(units, 2 * (rows / options.part_rows) + 1);
  const int64_t most_of_part = std::max(options.part_rows, unit_rows * pieces);
  return {.items = std::max(units * pieces, decode_items),
          .merges = units,
          .parts = parts,
          .block_starts = parts * (options.grid_size + 1),
          .partial_rows =
              std::max(std::min(rows, most_of_part), decode_items * std::min(group, unit_rows))};
}

}  // namespace

int32_t NumRanges(int32_t row_tiles, const AttentionPlanOptions& options) {
  constexpr int32_t kOfABlock = 8;
  return options.grid_size * (options.skips_far_keys ? kOfABlock / row_tiles : 1);
}

PlanSizes LargestPlan(const AttentionPlanArgs& args, const AttentionPlanOptions& options) {
  if (options.fixed_split) return LargestFixedSplit(args, options);
  // A sequence with few rows has one unit in each kv head. All units of other sequences but one
  // have at least 64 rows.
  const int64_t group = args.heads.num_heads / args.heads.num_kv_heads;
  const int64_t units =
      args.heads.num_kv_heads * (args.most_seqs + CeilDiv(args.most_tokens * group, kMostItemRows));
  PlanSizes sizes = {.items = units, .merges = units};
  const auto add_part = [&](int32_t most_rows, int32_t num_ranges) {
    // Each range but the first may begin with a cut, and a unit that is cut c times has c + 1
    // pieces.
    const int64_t most_cuts = num_ranges - 1;
    sizes.items += most_cuts;
    ++sizes.parts;
    sizes.block_starts += num_ranges + 1;
    sizes.partial_rows += 2 * most_cuts * most_rows;
  };
  // The more rows units have, the fewer ranges there are for them.
  const int32_t most_rows = options.skips_far_keys ? 16
                            : options.wide_items   ? kMostWideItemRows
                                                   : kMostItemRows;
  add_part(most_rows, NumRanges(1, options));
  if (options.prefill_grid_size > 0) add_part(16 * kPrefillRowTiles, options.prefill_grid_size);
  if (options.shares_keys && SharedUnits::Supports(args.key())) {
    // A decode's row has a partial result in its own unit and one in a shared unit, cut or not.
    const int64_t own_units = args.heads.num_kv_heads * args.most_seqs;
    sizes.items += own_units;
    sizes.partial_rows += 2 * own_units * group;
    sizes.members = args.most_seqs;
  }
  return sizes;
}

absl::Status CudaAttentionPlan::Check(const AttentionPlanArgs& args,
                                      const AttentionPlanOptions& options) {
  if (options.grid_size <= 0) {
    return WantGot("plan", "a grid of at least one block", absl::StrCat(options.grid_size));
  }
  if (options.fixed_split_keys <= 0 || options.fixed_split_keys % 64 != 0) {
    return WantGot("plan", "fixed_split_keys a positive multiple of 64",
                   absl::StrCat(options.fixed_split_keys));
  }
  if (options.fixed_split && options.shares_keys) {
    return WantGot("plan", "no shared keys with a fixed split", "both");
  }
  if (options.fixed_split && options.skips_far_keys) {
    return WantGot("plan", "no skipped keys with a fixed split", "both");
  }
  if (options.fixed_split && options.prefill_grid_size > 0) {
    return WantGot("plan", "one kernel for all rows of a fixed split", "a second one for chunks");
  }
  RETURN_IF_ERROR(Validate(args));
  for (size_t seq = 0; seq < args.query_lens.size(); ++seq) {
    // Kernels store row indices and the index of the last key of a tile in int32.
    const int64_t group = args.heads.num_heads / args.heads.num_kv_heads;
    if (args.fixed_launches && args.query_lens[seq] != 1) {
      return WantGot("plan", "one query token of each sequence for fixed launches",
                     absl::StrCat(args.query_lens[seq]));
    }
    if (args.query_lens[seq] * group > std::numeric_limits<int32_t>::max() - 128 ||
        args.context_lens[seq] > std::numeric_limits<int32_t>::max() - 128) {
      return WantGot("plan", "fewer than 2^31 - 128 keys and rows",
                     absl::StrCat(args.context_lens[seq], " and ", args.query_lens[seq] * group));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaAttentionPlan::Build(const AttentionPlanArgs& args,
                                      const AttentionPlanOptions& options) {
  RETURN_IF_ERROR(Check(args, options));
  parts_.clear();
  merges_.clear();
  lists_.Clear();
  num_partial_rows_ = next_partial_row_ = 0;
  decodes_.reset();
  shared_.Clear();
  SetStep(args);
  fixed_launches_ = args.fixed_launches;
  most_decode_rows_ = MostDecodeRows(value_dim(), options);
  if (options.shares_keys && SharedUnits::Supports(args.key())) shared_.Build(args);
  if (fixed_launches_ && !args.pattern.has_holes() && shared_.empty()) {
    return SizeDecodes(args, options);
  }
  std::vector<AttentionItem> units = Units(/*prefill=*/false, options);
  const int64_t num_units = std::ssize(units);
  shared_.AddTo(units);
  num_ranges_ = NumRanges(MostRowTiles(units), options);
  RETURN_IF_ERROR(AddParts(units, /*prefill=*/false, options));
  RETURN_IF_ERROR(AddParts(Units(/*prefill=*/true, options), /*prefill=*/true, options));
  if (!shared_.empty()) {
    for (AttentionMerge& merge : merges_) shared_.Complete(merge);
  }
  if (fixed_launches_) FixLaunches(num_units);
  if (!options.fixed_split && !parts_.empty()) {
    parts_.back().num_merges = static_cast<int32_t>(merges_.size());
  }
  return absl::OkStatus();
}

// Shared units have up to kMostItemRows. With them it is the same for all steps, so that one
// recording serves all of them.
int32_t CudaAttentionPlan::MostRowTiles(std::span<const AttentionItem> units) const {
  int32_t most_rows = shared_.empty() ? 1 : kMostItemRows;
  for (const AttentionItem& unit : units) most_rows = std::max(most_rows, unit.num_rows);
  return ItemRowTiles(most_rows, value_dim());
}

absl::Status CudaAttentionPlan::AddParts(const std::vector<AttentionItem>& units, bool prefill,
                                         const AttentionPlanOptions& options) {
  if (units.empty()) return absl::OkStatus();
  const size_t first_part = parts_.size();
  if (options.fixed_split) {
    RETURN_IF_ERROR(CutAtFixedKeys(units, options));
  } else {
    Part& part = parts_.emplace_back(Part{.prefill = prefill});
    const int32_t num_ranges = prefill ? options.prefill_grid_size : num_ranges_;
    RETURN_IF_ERROR(CutEqually(units, num_ranges, options, part));
  }
  for (size_t i = first_part; i < parts_.size(); ++i) parts_[i].room = std::ssize(parts_[i].items);
  return absl::OkStatus();
}

absl::Status CudaAttentionPlan::SizeDecodes(const AttentionPlanArgs& args,
                                            const AttentionPlanOptions& options) {
  const int32_t tile_keys = AttentionTileKeys(value_dim());
  DecodePlan& plan = decodes_.emplace(DecodePlan{
      .units = {.num_kv_heads = num_kv_heads(), .group = group(), .most_rows = most_decode_rows_},
      .num_ranges =
          NumRanges(ItemRowTiles(std::min(group(), most_decode_rows_), value_dim()), options),
      .fixed_split_tiles = options.fixed_split ? PieceTiles(value_dim(), options) : 0});
  int64_t num_items = 0, num_partial_items = 0;
  if (options.fixed_split) {
    for (int64_t seq = 0; seq < num_seqs(); ++seq) {
      const DecodeTiles tiles = TilesOfDecode(pattern(), context_len(seq), tile_keys);
      num_items += int64_t{plan.units.per_seq()} *
                   CutAtMultiples(tiles.first, tiles.count, plan.fixed_split_tiles).count;
    }
    // The size must change rarely, so that few recordings serve all steps. It is that of the
    // longest sequences, if these are known.
    const int64_t most = num_seqs() * plan.units.per_seq() * MostPieces(args, options);
    num_items = num_items <= most ? most : RoundUpToFewSizes(num_items);
    num_partial_items = num_items;
  } else {
    // Each range but the first may begin with a cut, and a unit that is cut c times has c + 1
    // pieces.
    const int64_t most_cuts = plan.num_ranges - 1;
    num_items = num_seqs() * plan.units.per_seq() + most_cuts;
    num_partial_items = 2 * most_cuts;
  }
  const int64_t partial_rows = num_partial_items * plan.units.rows();
  if (partial_rows > options.max_partial_rows || num_items > std::numeric_limits<int32_t>::max()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("plan: want at most ", options.max_partial_rows, " partial rows, got ",
                     partial_rows, " of ", num_seqs(), " decodes"));
  }
  num_partial_rows_ = static_cast<int32_t>(partial_rows);
  plan.most_items = static_cast<int32_t>(num_items);
  return absl::OkStatus();
}

void CudaAttentionPlan::FixLaunches(int64_t num_units) {
  for (Part& part : parts_) {
    part.block_starts.resize(static_cast<size_t>(num_ranges_) + 1, part.block_starts.back());
    part.room = RoundUpToFewSizes(part.room);
  }
  merges_.resize(static_cast<size_t>(num_units));
  if (!shared_.empty()) {
    // Sizes that no sharing of these sequences exceeds, so that one recording serves all of it.
    const int64_t most_cuts = num_ranges_ - 1;
    for (Part& part : parts_) part.room = 2 * num_units + most_cuts;
    num_partial_rows_ = static_cast<int32_t>(2 * num_units * group() + most_cuts * kMostItemRows);
    return;
  }
  num_partial_rows_ = static_cast<int32_t>(RoundUpToFewSizes(num_partial_rows_));
}

int32_t CudaAttentionPlan::most_merge_rows() const {
  if (decodes_) return decodes_->units.rows();
  if (fixed_launches_) return std::min(group(), most_decode_rows_);  // a sequence has group() rows
  int32_t rows = 0;
  for (const AttentionMerge& merge : merges_) rows = std::max(rows, merge.num_rows);
  return rows;
}

void CudaAttentionPlan::ListTiles(AttentionItem& unit) {
  const int32_t first = unit.first_row / group();
  const int32_t last = (unit.first_row + unit.num_rows - 1) / group();
  // If a unit has rows of several queries, its list covers all heads of the group.
  const bool one_query = first == last;
  const TileLists::Range list = lists_.Add(
      pattern(),
      {.first_query = unit.first_position + first,
       .last_query = unit.first_position + last,
       .first_head = unit.kv_head * int64_t{group()} + (one_query ? unit.first_row % group() : 0),
       .num_heads = one_query ? unit.num_rows : group()},
      AttentionTileKeys(value_dim()));
  unit.first_tile = list.begin;
  unit.num_tiles = list.end - list.begin;
}

// A decode stays with AttnKernel, whatever its number of heads: its time is that of reading the
// keys, and its plan is made on the device.
bool CudaAttentionPlan::IsPrefill(int64_t seq, const AttentionPlanOptions& options) const {
  const int64_t num_rows = int64_t{query_len(seq)} * group();
  return options.prefill_grid_size > 0 && query_len(seq) > 1 && num_rows > kMostItemRows;
}

int32_t CudaAttentionPlan::MostRows(int64_t seq, bool prefill,
                                    const AttentionPlanOptions& options) const {
  if (prefill) return 16 * kPrefillRowTiles;
  const bool wide = options.wide_items && !options.fixed_split && query_len(seq) > 1;
  return wide ? kMostWideItemRows : most_decode_rows_;
}

std::vector<AttentionItem> CudaAttentionPlan::Units(bool prefill,
                                                    const AttentionPlanOptions& options) {
  std::vector<AttentionItem> units;
  for (int64_t seq = 0; seq < num_seqs(); ++seq) {
    const int32_t num_rows = query_len(seq) * group();
    if (num_rows == 0 || IsPrefill(seq, options) != prefill) continue;
    const int32_t most_rows = MostRows(seq, prefill, options);
    const int32_t first_position = context_len(seq) - query_len(seq);
    for (int32_t kv_head = 0; kv_head < num_kv_heads(); ++kv_head) {
      for (int32_t first_row = 0; first_row < num_rows; first_row += most_rows) {
        AttentionItem unit{.seq = static_cast<int32_t>(seq),
                           .kv_head = kv_head,
                           .first_row = first_row,
                           .num_rows = std::min(most_rows, num_rows - first_row),
                           .first_position = first_position};
        const int32_t last_row = first_row + unit.num_rows - 1;
        unit.key_begin =
            std::max(static_cast<int32_t>(pattern().FirstKey(first_position + first_row / group())),
                     shared_.EndOf(static_cast<int32_t>(seq)));
        unit.key_end = first_position + last_row / group() + 1;
        if (pattern().has_holes()) ListTiles(unit);
        units.push_back(unit);
      }
    }
  }
  return units;
}

absl::Status CudaAttentionPlan::AddPieces(const AttentionItem& unit,
                                          const std::vector<int32_t>& cuts,
                                          const AttentionPlanOptions& options, Part& part) {
  const int32_t tile_keys = TileKeys(part);
  const auto num_items = static_cast<int32_t>(cuts.size()) - 1;
  const int32_t first_partial = next_partial_row_;
  const bool is_shared = unit.first_member >= 0;
  const bool is_partial =
      num_items > 1 || options.fixed_split || is_shared || shared_.EndOf(unit.seq) > 0;
  if (is_partial) {
    const int64_t partial_rows = first_partial + int64_t{num_items} * unit.num_rows;
    if (partial_rows > options.max_partial_rows) {
      return absl::ResourceExhaustedError(
          absl::StrCat("plan: want at most ", options.max_partial_rows, " partial rows, got ",
                       partial_rows, " by sequence ", unit.seq, " of ", num_seqs()));
    }
    if (is_shared) {
      shared_.SetPieces(unit, first_partial, num_items);
    } else {
      merges_.push_back({.seq = unit.seq,
                         .kv_head = unit.kv_head,
                         .first_row = unit.first_row,
                         .num_rows = unit.num_rows,
                         .partial = first_partial,
                         .num_items = num_items});
    }
    next_partial_row_ = static_cast<int32_t>(partial_rows);
    num_partial_rows_ = std::max(num_partial_rows_, next_partial_row_);
  }
  for (int32_t i = 0; i < num_items; ++i) {
    AttentionItem item = unit;
    const int32_t begin = cuts[static_cast<size_t>(i)], end = cuts[static_cast<size_t>(i) + 1];
    if (unit.num_tiles > 0) {
      item.first_tile = begin;
      item.num_tiles = end - begin;
    } else {
      item.key_begin = std::max(unit.key_begin, begin * tile_keys);
      item.key_end = std::min(unit.key_end, end * tile_keys);
    }
    if (is_partial) item.partial = first_partial + i * unit.num_rows;
    part.items.push_back(item);
  }
  return absl::OkStatus();
}

absl::Status CudaAttentionPlan::CutEqually(const std::vector<AttentionItem>& units,
                                           int32_t num_ranges, const AttentionPlanOptions& options,
                                           Part& part) {
  const int32_t tile_keys = TileKeys(part);
  int64_t total = 0;
  int32_t longest = 0;
  for (const AttentionItem& unit : units) {
    total += NumTiles(unit, tile_keys);
    longest = std::max(longest, NumTiles(unit, tile_keys));
  }
  const int64_t range =
      std::max<int64_t>(CeilDiv(total, num_ranges), std::min(kMinRangeTiles, longest));
  part.block_starts.push_back(0);
  int64_t room = range;  // how many more tiles the current range takes
  for (const AttentionItem& unit : units) {
    std::vector<int32_t> cuts = {FirstTile(unit, tile_keys)};
    const int32_t end = EndTile(unit, tile_keys);
    while (cuts.back() < end) {
      if (room == 0) {
        part.block_starts.push_back(static_cast<int32_t>(part.items.size() + cuts.size()) - 1);
        room = range;
      }
      const auto take = static_cast<int32_t>(std::min<int64_t>(room, end - cuts.back()));
      cuts.push_back(cuts.back() + take);
      room -= take;
    }
    RETURN_IF_ERROR(AddPieces(unit, cuts, options, part));
  }
  part.block_starts.push_back(static_cast<int32_t>(part.items.size()));
  return absl::OkStatus();
}

absl::Status CudaAttentionPlan::CutAtFixedKeys(const std::vector<AttentionItem>& units,
                                               const AttentionPlanOptions& options) {
  const int32_t piece_tiles = PieceTiles(value_dim(), options);
  for (size_t i = 0; i < units.size(); ++i) {
    const std::vector<int32_t> cuts = FixedCuts(units[i], piece_tiles);
    const int64_t partial_rows = (std::ssize(cuts) - 1) * units[i].num_rows;
    if (i == 0 || next_partial_row_ + partial_rows > options.part_rows) {
      parts_.emplace_back();
      next_partial_row_ = 0;
    }
    Part& part = parts_.back();
    RETURN_IF_ERROR(AddPieces(units[i], cuts, options, part));
    ++part.num_merges;
  }
  for (Part& part : parts_) StartBlocks(options.grid_size, part);
  return absl::OkStatus();
}

std::vector<int32_t> CudaAttentionPlan::FixedCuts(const AttentionItem& unit,
                                                  int32_t piece_tiles) const {
  const int32_t tile_keys = AttentionTileKeys(value_dim());
  const int32_t first = FirstTile(unit, tile_keys), end = EndTile(unit, tile_keys);
  std::vector<int32_t> cuts = {first};
  if (unit.num_tiles > 0) {
    const auto piece_of = [&](int32_t i) {
      return tiles()[static_cast<size_t>(i)].tile / piece_tiles;
    };
    for (int32_t i = first + 1; i < end; ++i) {
      if (piece_of(i) != piece_of(i - 1)) cuts.push_back(i);
    }
  } else {
    const FixedPieces pieces = CutAtMultiples(first, end - first, piece_tiles);
    for (int32_t i = 1; i < pieces.count; ++i) {
      cuts.push_back(first + pieces.first_cut + (i - 1) * piece_tiles);
    }
  }
  cuts.push_back(end);
  return cuts;
}

void CudaAttentionPlan::StartBlocks(int32_t grid_size, Part& part) const {
  const int32_t tile_keys = TileKeys(part);
  int64_t total = 0;
  for (const AttentionItem& item : part.items) total += NumTiles(item, tile_keys);
  // Block b takes items until blocks 0 .. b together have at least (b + 1) * range tiles.
  const int64_t range = CeilDiv(total, grid_size);
  int64_t done = 0;
  for (size_t i = 0; i < part.items.size(); ++i) {
    if (part.block_starts.empty() ||
        done >= static_cast<int64_t>(part.block_starts.size()) * range) {
      part.block_starts.push_back(static_cast<int32_t>(i));
    }
    done += NumTiles(part.items[i], tile_keys);
  }
  part.block_starts.push_back(static_cast<int32_t>(part.items.size()));
}

}  // namespace quire::kernels::cuda
