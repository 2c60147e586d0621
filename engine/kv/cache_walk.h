#pragma once

// Walks the prefix tree, a bounded number of blocks at a time, and notes its shape.

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "engine/kv/block_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/request/cache_map.h"

namespace quire::engine {

// The pins by their last block.
using PinEnds = std::unordered_multimap<int32_t, PinId>;

// Breadth first, so that what many prompts begin with is seen before what follows. First come the
// trees of prompts, and then those that follow named prefixes, under the nodes where the prefixes
// end. The tree may change between two calls of Walk: a place that is gone is left out.
class CacheWalk {
 public:
  // All arguments must outlive the walk.
  CacheWalk(const PrefixCache& cache, const BlockPool& pool, const PinEnds& pin_ends)
      : cache_(cache), pool_(pool), pin_ends_(pin_ends) {}

  // Visits at most `at_most` blocks and roots. Returns true when the walk has ended.
  bool Walk(int32_t at_most);
  // Adds the nodes to `map`. Called once, after the end.
  void Take(CacheMap& map);

 private:
  // The trees after named prefixes get the places that the others leave, and this many at least.
  static constexpr int32_t kKeptForPrefixes = kMostMapNodes / 4;

  // A block and those that begin at the same place, to be visited.
  struct Branch {
    int32_t block = -1;
    uint32_t generation = 0;
    int32_t parent = -1;  // index of a node
    // False: the blocks of another root, which follow the node's prefix.
    bool is_child = true;
  };

  bool IsThere(int32_t block, uint32_t generation) const {
    return cache_.IsListed(block) && cache_.generation(block) == generation;
  }
  void VisitRoot(RootId root);
  void Begin(Branch branch);
  // Adds the block to the last node, and goes on to the next one or ends the node.
  void VisitBlock();
  bool IsFull() const;

  const PrefixCache& cache_;
  const BlockPool& pool_;
  const PinEnds& pin_ends_;

  std::vector<CacheMapNode> nodes_;
  std::unordered_map<PinId, int32_t> node_of_pin_;
  std::deque<Branch> branches_;
  RootId next_root_ = 0;
  bool on_prefixes_ = false;  // the trees after named prefixes are walked
  int32_t block_ = -1;        // the next one of the last node; -1: the node has ended
  uint32_t generation_ = 0;
  int64_t num_beginnings_ = 0;
};

}  // namespace quire::engine
