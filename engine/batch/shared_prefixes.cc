#include "engine/batch/shared_prefixes.h"

#include <algorithm>
#include <functional>

#include "kernels/ops/attention_pattern.h"

namespace quire::engine {

void SharedPrefixes::Find(std::span<PrefixRow> rows, int64_t least_saved_keys) {
  seqs_.clear();
  keys_.clear();
  num_saved_ = AddBest(rows, 0);
  if (num_saved_ >= least_saved_keys) return;
  seqs_.clear();
  keys_.clear();
  num_saved_ = 0;
}

// `rows` is a node of the trie of all rows. It has one branch for each different next block.
int64_t SharedPrefixes::AddBest(std::span<PrefixRow> rows, size_t depth) {
  if (rows.size() < 2) return 0;
  size_t common = rows[0].blocks.size();
  for (const PrefixRow& row : rows.subspan(1)) {
    const size_t end = std::min(common, row.blocks.size());
    common = depth;
    while (common < end && row.blocks[common] == rows[0].blocks[common]) ++common;
  }
  const auto first_seq = seqs_.size(), first_key = keys_.size();
  const auto has_next = [common](const PrefixRow& row) { return common < row.blocks.size(); };
  const auto next = [common](const PrefixRow& row) { return row.blocks[common]; };
  const auto longer = std::ranges::partition(rows, std::not_fn(has_next));
  std::ranges::sort(longer, {}, next);
  int64_t saved_by_branches = 0;
  for (size_t begin = 0; begin < longer.size();) {
    size_t end = begin + 1;
    while (end < longer.size() && next(longer[end]) == next(longer[begin])) ++end;
    saved_by_branches += AddBest(std::span(longer).subspan(begin, end - begin), common + 1);
    begin = end;
  }
  constexpr int64_t kUnit = kernels::AttentionPattern::kTileKeys;
  const int64_t num_keys = static_cast<int64_t>(common) * block_size_ / kUnit * kUnit;
  const int64_t saved = (std::ssize(rows) - 1) * num_keys;
  if (num_keys < kLeastKeys || saved <= saved_by_branches) return saved_by_branches;
  seqs_.resize(first_seq);
  keys_.resize(first_key);
  keys_.push_back({.first = static_cast<int32_t>(first_seq),
                   .count = static_cast<int32_t>(rows.size()),
                   .num_keys = static_cast<int32_t>(num_keys)});
  for (const PrefixRow& row : rows) seqs_.push_back(row.seq);
  return saved;
}

}  // namespace quire::engine
