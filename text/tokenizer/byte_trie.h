#pragma once

// Strings by their prefixes, to find those with which a text begins.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::text {

// Immutable; thread-safe. 12 bytes per node: the children of a node are adjacent and sorted.
class ByteTrie {
 public:
  // If keys are equal the last one's value stays. Keys are not empty, values not negative.
  explicit ByteTrie(std::vector<std::pair<std::string_view, int32_t>> entries);

  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = UINT32_MAX;
  // The child of `node` for `byte`; kNone when no key continues with it.
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
