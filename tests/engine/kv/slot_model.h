#pragma once

// The K and V of a model in which each slot of the cache has the hash of all tokens up to its own.

#include <cstdint>
#include <string>
#include <vector>

namespace quire::engine {

struct Slot {
  uint64_t hash = 0;
  std::string root;           // of the sequence that computed it
  bool was_restored = false;  // from a disk
};

// Returns the hash of the tokens whose last one is `token`. `before` is that of the others; of
// none: 0.
inline uint64_t HashAfter(uint64_t before, int32_t token) {
  return (before ^ static_cast<uint64_t>(token + 1)) * 0x9e3779b97f4a7c15u + (before >> 29);
}

}  // namespace quire::engine
