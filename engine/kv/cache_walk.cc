#include "engine/kv/cache_walk.h"

#include <algorithm>
#include <utility>

namespace quire::engine {

bool CacheWalk::IsFull() const {
  return std::ssize(nodes_) >= kMostMapNodes - (on_prefixes_ ? 0 : kKeptForPrefixes);
}

bool CacheWalk::Walk(int32_t at_most) {
  for (int32_t left = at_most; left > 0; --left) {
    if (block_ >= 0) {
      VisitBlock();
    } else if (next_root_ < cache_.roots().num_ids() && !IsFull()) {
      VisitRoot(next_root_++);
    } else if (!branches_.empty() && !IsFull()) {
      const Branch branch = branches_.front();
      branches_.pop_front();
      Begin(branch);
    } else if (!on_prefixes_) {
      on_prefixes_ = true;
      branches_.clear();
      next_root_ = 0;
    } else {
      return true;
    }
  }
  return false;
}

void CacheWalk::VisitRoot(RootId root) {
  const int32_t first = cache_.FirstOf(root);
  const PinId on = cache_.roots().on(root);
  if (first < 0 || (on != kNoPin) != on_prefixes_) return;
  Branch branch{.block = first, .generation = cache_.generation(first)};
  if (const auto node = node_of_pin_.find(on); node != node_of_pin_.end()) {
    branch.parent = node->second;
    branch.is_child = false;
  }
  branches_.push_back(branch);
}

void CacheWalk::Begin(Branch branch) {
  if (!IsThere(branch.block, branch.generation)) return;
  const RootId root = cache_.root(branch.block);
  RootNames names = NamesOfRoot(cache_.roots().key(root));
  nodes_.push_back({.parent = branch.parent,
                    .tenant = std::move(names.tenant),
                    .part = std::move(names.part),
                    .num_sequences = pool_.table_refs(branch.block)});
  if (branch.parent >= 0 && branch.is_child) {
    int64_t& hidden = nodes_[static_cast<size_t>(branch.parent)].num_hidden;
    hidden = std::max(int64_t{0}, hidden - 1);
  } else {
    ++num_beginnings_;
  }
  block_ = branch.block;
  generation_ = branch.generation;
  branch.block = cache_.NextSibling(branch.block);
  if (branch.block < 0) return;
  branch.generation = cache_.generation(branch.block);
  branches_.push_back(branch);
}

void CacheWalk::VisitBlock() {
  const int32_t block = std::exchange(block_, -1);
  if (!IsThere(block, generation_)) return;
  const auto index = static_cast<int32_t>(nodes_.size()) - 1;
  CacheMapNode& node = nodes_.back();
  ++node.num_blocks;
  node.num_tokens += std::ssize(cache_.Tokens(block));
  node.num_held += pool_.refs(block) > 0 ? 1 : 0;
  node.num_pinned += pool_.pin_refs(block) > 0 ? 1 : 0;
  const auto [first_pin, last_pin] = pin_ends_.equal_range(block);
  const int32_t child = cache_.FirstChild(block);
  const bool goes_on = cache_.num_children(block) == 1 && first_pin == last_pin &&
                       pool_.table_refs(child) == pool_.table_refs(block) &&
                       (pool_.refs(child) > 0) == (pool_.refs(block) > 0);
  if (goes_on) {
    block_ = child;
    generation_ = cache_.generation(child);
    return;
  }
  for (auto pin = first_pin; pin != last_pin; ++pin) {
    node_of_pin_[pin->second] = index;
    if (std::ssize(node.pins) < kMostPinsOfNode) node.pins.push_back(pin->second);
  }
  node.num_hidden = cache_.num_children(block);
  if (child < 0) return;
  branches_.push_back({.block = child, .generation = cache_.generation(child), .parent = index});
}

void CacheWalk::Take(CacheMap& map) {
  map.nodes = std::move(nodes_);
  map.num_hidden_roots = std::max(int64_t{0}, cache_.num_beginnings() - num_beginnings_);
}

}  // namespace quire::engine
