#pragma once

// A picture of what the KV cache holds: names and numbers, no tokens.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

namespace quire::engine {

inline constexpr int32_t kMostMapCells = 4096;
inline constexpr int32_t kMostMapNodes = 512;
inline constexpr int32_t kMostPinsOfNode = 4;

// Counts the blocks of a run of successive ids, by state. free + cached + held = num_blocks.
struct CacheMapCell {
  int32_t num_blocks = 0;
  int32_t cached = 0;
  int32_t held = 0;
  int32_t pinned = 0;  // of held: by pins, and perhaps by sequences as well
  int32_t shared = 0;  // of held: by several sequences or pins

  int32_t free() const { return num_blocks - cached - held; }
  CacheMapCell& operator+=(const CacheMapCell& other) {
    num_blocks += other.num_blocks;
    cached += other.cached;
    held += other.held;
    pinned += other.pinned;
    shared += other.shared;
    return *this;
  }
};

// A run of blocks of the prefix tree, each of which follows the one before it, and all of which as
// many sequences hold.
struct CacheMapNode {
  int32_t parent = -1;  // index of the node that this one follows; -1: it begins a prompt
  std::string tenant;   // whose requests computed the blocks
  std::string part;     // CacheParams::part
  int64_t num_blocks = 0;
  int64_t num_tokens = 0;
  int64_t num_held = 0;
  int64_t num_pinned = 0;
  int64_t num_sequences = 0;   // that hold the blocks
  int64_t num_hidden = 0;      // nodes that follow this one, and are left out
  std::vector<uint64_t> pins;  // that end with this node: PrefixInfo::pin, or of a session
};

// Running sequences of one tenant on a named prefix.
struct CacheMapUse {
  uint64_t pin = 0;  // PrefixInfo::pin
  std::string tenant;
  int64_t num_sequences = 0;
};

struct CacheMap {
  int32_t block_size = 0;
  int64_t num_blocks = 0;
  std::vector<CacheMapCell> cells;  // by block id; at most kMostMapCells
  std::vector<CacheMapNode> nodes;  // a node comes after its parent; at most kMostMapNodes
  int64_t num_hidden_roots = 0;     // nodes without a parent that are left out
  std::vector<CacheMapUse> uses;
};

using CacheMapDone =
    absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<const CacheMap>> map) &&>;

}  // namespace quire::engine
