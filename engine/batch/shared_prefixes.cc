#include "engine/batch/shared_prefixes.h"

#include <algorithm>

#include "kernels/ops/attention_pattern.h"

namespace quire::engine {

void SharedPrefixes::Find(std::span<PrefixRow> rows, int64_t least_saved_keys) {
  seqs_.clear();
  keys_.clear();
  num_saved_ = AddBest(rows, 0, kMostLevels);
  if (num_saved_ >= least_saved_keys) return;
  seqs_.clear();
  keys_.clear();
  num_saved_ = 0;
}

// `rows` is a node of the trie of all rows, with one branch for each different next block.
int64_t SharedPrefixes::AddBest(std::span<PrefixRow> rows, size_t depth, int levels) {
  if (rows.size() < 2) return 0;
  size_t common = rows[0].blocks.size();
  for (const PrefixRow& row : rows.subspan(1)) {
    const size_t end = std::min(common, row.blocks.size());
    common = depth;
    while (common < end && row.blocks[common] == rows[0].blocks[common]) ++common;
  }
  const size_t first_seq = seqs_.size(), first_key = keys_.size(), first_branch = branches_.size();
  const auto ends_here = [common](const PrefixRow& row) { return row.blocks.size() == common; };
  const auto next = [common](const PrefixRow& row) { return row.blocks[common]; };
  const auto longer = std::partition(rows.begin(), rows.end(), ends_here);
  std::sort(longer, rows.end(),
            [&](const PrefixRow& a, const PrefixRow& b) { return next(a) < next(b); });
  auto begin = static_cast<size_t>(longer - rows.begin());
  int64_t saved_by_branches = 0;
  for (size_t end = begin; levels > 1 && begin < rows.size(); begin = end) {
    while (end < rows.size() && next(rows[end]) == next(rows[begin])) ++end;
    const int64_t saved = AddBest(rows.subspan(begin, end - begin), common + 1, levels - 1);
    if (saved == 0) continue;
    branches_.push_back({begin, end, seqs_.size(), keys_.size(), saved});
    saved_by_branches += saved;
  }
  const std::span branches = std::span(branches_).subspan(first_branch);

  constexpr int64_t kUnit = kernels::AttentionPattern::kTileKeys;
  int64_t num_keys = static_cast<int64_t>(common) * block_size_ / kUnit * kUnit;
  if (num_keys < kLeastKeys) num_keys = 0;
  // The rows of a branch share this node's prefix where that saves more than prefixes of their own.
  int64_t num_sharing = std::ssize(rows), saved = -num_keys;
  for (Branch& branch : branches) {
    const auto size = static_cast<int64_t>(branch.end - branch.begin);
    branch.keeps_own = branch.saved > size * num_keys;
    if (!branch.keeps_own) continue;
    num_sharing -= size;
    saved += branch.saved;
  }
  saved += num_sharing * num_keys;
  if (num_keys > 0 && saved > saved_by_branches) {
    KeepOwn(branches, first_seq, first_key);
    keys_.push_back({.first = static_cast<int32_t>(seqs_.size()),
                     .count = static_cast<int32_t>(num_sharing),
                     .num_keys = static_cast<int32_t>(num_keys)});
    size_t row = 0;
    const auto add_until = [&](size_t end) {
      while (row < end) seqs_.push_back(rows[row++].seq);
    };
    for (const Branch& branch : branches) {
      if (!branch.keeps_own) continue;
      add_until(branch.begin);
      row = branch.end;
    }
    add_until(rows.size());
  } else {
    saved = saved_by_branches;
  }
  branches_.resize(first_branch);
  return saved;
}

void SharedPrefixes::KeepOwn(std::span<const Branch> branches, size_t first_seq, size_t first_key) {
  size_t seq = first_seq, key = first_key, from_seq = first_seq, from_key = first_key;
  for (const Branch& branch : branches) {
    for (; from_key < branch.end_key; ++from_key) {
      if (!branch.keeps_own) continue;
      keys_[key] = keys_[from_key];
      keys_[key++].first -= static_cast<int32_t>(from_seq - seq);
    }
    if (branch.keeps_own) {
      while (from_seq < branch.end_seq) seqs_[seq++] = seqs_[from_seq++];
    }
    from_seq = branch.end_seq;
  }
  seqs_.resize(seq);
  keys_.resize(key);
}

}  // namespace quire::engine
