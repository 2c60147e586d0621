#pragma once

// A trie of strings. It finds the strings that are prefixes of a text.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::text {

// Immutable; thread-safe. A node takes 12 bytes. The children of a node are adjacent and sorted.
class ByteTrie {
 public:
  // If several entries have the same key, the value of the last entry is kept. Keys must not be
  // empty, and values must not be negative.
  explicit ByteTrie(std::vector<std::pair<std::string_view, int32_t>> entries);

  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = UINT32_MAX;
  // Returns the child of `node` for `byte`; kNone when no key continues with that byte.
  uint32_t Next(uint32_t node, uint8_t byte) const;
  int32_t Value(uint32_t node) const { return nodes_[node].value; }  // -1: no key ends here
  int32_t Find(std::string_view key) const;                          // -1: absent

 private:
  struct Node {
    uint32_t first_child = 0;
    int32_t value = -1;
    uint16_t num_children = 0;
    uint8_t label = 0;  // the byte that leads here
  };
  std::vector<Node> nodes_;
};

}  // namespace quire::text
