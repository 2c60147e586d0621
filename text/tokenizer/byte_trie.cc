#include "text/tokenizer/byte_trie.h"

#include <algorithm>

namespace quire::text {

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, int32_t>> entries) : nodes_(1) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  // Builds the nodes breadth first. The entries below a node are a range of the sorted list.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
    size_t depth = 0;
  };
  std::vector<Range> ranges = {{0, entries.size(), 0}};  // by node
  for (size_t node = 0; node < nodes_.size(); ++node) {
    auto [at, end, depth] = ranges[node];
    while (at < end && entries[at].first.size() == depth) nodes_[node].value = entries[at++].second;
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (at < end) {
      const size_t first = at;
      const char label = entries[at].first[depth];
      while (at < end && entries[at].first[depth] == label) ++at;
      ranges.push_back({first, at, depth + 1});
      nodes_.push_back({.label = static_cast<uint8_t>(label)});
      ++nodes_[node].num_children;
    }
  }
}

uint32_t ByteTrie::Next(uint32_t node, uint8_t byte) const {
  const auto first = nodes_.begin() + nodes_[node].first_child;
  const auto last = first + nodes_[node].num_children;
  const auto it = std::lower_bound(first, last, byte,
                                   [](const Node& child, uint8_t b) { return child.label < b; });
  return it != last && it->label == byte ? static_cast<uint32_t>(it - nodes_.begin()) : kNone;
}

int32_t ByteTrie::Find(std::string_view key) const {
  uint32_t node = kRoot;
  for (const char c : key) {
    node = Next(node, static_cast<uint8_t>(c));
    if (node == kNone) return -1;
  }
  return Value(node);
}

}  // namespace quire::text
