#pragma once

// What the blocks hold: a tree of them by their tokens, to find the longest known prefix.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/kv/cache_roots.h"
#include "engine/kv/eviction_queue.h"

namespace quire::engine {

// How Find() knows a whole block; shown to clients, who may compare it across servers.
inline constexpr std::string_view kHashScheme = "xxh3-128, chained, verified by tokens";

// A listed block is a node: its committed tokens, 1 .. block_size of them, behind those of its
// parent, a whole block or a root. Whole ones are found by the hash chained over all tokens from
// the root on, and then compared, tokens and parent (index and generation) both, so that a
// collision is a miss; there is one node for each content. Any node, whole or not, is found by
// (parent, first token) to match it in part.
//
// Nodes are held or not (as told by MarkHeld and MarkUnheld); a held node's parent is held. Those
// not held are evicted leaves first, by when they were last held plus a light bonus for the work
// to compute them again: kEvictionBonusSteps steps for a whole block at the front of a sequence,
// that much again for each kBonusPositions tokens before it (attention reads them), less for one
// not full. So a block outlives others of about its own age only.
//
// Cost: Find is O(tokens); List, Append, MarkHeld, MarkUnheld and Evict O(log blocks). Nothing is
// allocated after construction but for roots. Reference counts are BlockPool's. Not thread-safe.
class PrefixCache {
 public:
  static constexpr int64_t kEvictionBonusSteps = 4;
  static constexpr int64_t kBonusPositions = 8192;
  static constexpr int32_t kMaxCompared = 8;

  // At most `max_compared` nodes under one (parent, first token), the last used ones, are compared
  // for the best match in part.
  PrefixCache(int32_t num_blocks, int32_t block_size, int32_t max_compared = kMaxCompared);

  CacheRoots& roots() { return roots_; }
  const CacheRoots& roots() const { return roots_; }

  struct Match {
    int32_t num_whole = 0;       // blocks matched whole
    int32_t partial_block = -1;  // the node that goes on best; -1: none
    int32_t partial_tokens = 0;  // that many of its tokens match
  };
  // What is known of `tokens`. The whole blocks, in order, are appended to `whole`.
  Match Find(RootId root, std::span<const int32_t> tokens, std::vector<int32_t>* whole);

  // The node of a whole block with these tokens under `parent` (-1: the root itself), or -1.
  int32_t FindWhole(RootId root, int32_t parent, std::span<const int32_t> tokens) const;

  // Makes `block`, which is held, a node. If the tokens fill it, FindWhole() knows no other.
  void List(int32_t block, RootId root, int32_t parent, std::span<const int32_t> tokens);
  // More tokens for a node that was not full; the same holds once they fill it.
  void Append(int32_t block, std::span<const int32_t> tokens);
  // A leaf is no longer a node.
  void Unlist(int32_t block);

  bool IsListed(int32_t block) const { return nodes_[block].num_tokens > 0; }
  bool IsLeaf(int32_t block) const { return nodes_[block].num_children == 0; }
  std::span<const int32_t> Tokens(int32_t block) const {
    return {tokens_.data() + int64_t{block} * block_size_,
            static_cast<size_t>(nodes_[block].num_tokens)};
  }

  // `step` is when.
  void MarkUnheld(int32_t block, int64_t step);
  void MarkHeld(int32_t block);
  // Unlists the next leaf that nobody holds; -1 when there is none.
  int32_t Evict();

  // `of_sequences`: the root of each sequence. Aborts unless these and the nodes that stand at a
  // root are all that refers to it, and no other root is kept.
  void CheckRoots(std::span<const RootId> of_sequences) const;
  // `held(block)` and `listed(block)` are what BlockPool says. Aborts on a difference.
  template <typename Pool>
  void CheckInvariants(const Pool& pool) const {
    CheckTree();
    for (int32_t i = 0; i < pool.num_blocks(); ++i) CheckNode(i, pool.listed(i), IsHeld(pool, i));
  }

 private:
  // A parent: a block's index, or -1 - root; with its generation.
  struct NodeKey {
    int32_t index = -1;
    uint32_t generation = 0;
    bool operator==(const NodeKey&) const = default;
  };
  struct Node {
    int32_t num_tokens = 0;  // 0: not listed
    int32_t num_children = 0;
    NodeKey parent;
    uint32_t generation = 0;  // differs each time the block is listed anew
    RootId root = -1;
    int64_t first_position = 0;
    ChainHash hash;  // of a whole one
    bool held = true;
    int64_t unheld_since = 0;  // step
    // Chains of the two indices.
    int32_t next_child = -1;
    int32_t previous_child = -1;
    int32_t next_whole = -1;
  };

  template <typename Pool>
  static bool IsHeld(const Pool& pool, int32_t block) {
    return pool.table_refs(block) + pool.handle_refs(block) > 0;
  }
  NodeKey KeyOf(RootId root, int32_t block) const;
  const ChainHash& HashOf(NodeKey key) const;
  ChainHash Chain(const ChainHash& parent, std::span<const int32_t> tokens) const;
  int32_t Lookup(const ChainHash& hash, NodeKey parent, std::span<const int32_t> tokens) const;
  size_t ChildBucket(NodeKey parent, int32_t first_token) const;
  size_t WholeBucket(const ChainHash& hash) const { return hash.low & mask_; }
  void LinkChild(int32_t block);
  void UnlinkChild(int32_t block);
  void LinkWhole(int32_t block);
  void UnlinkWhole(int32_t block);
  void Enqueue(int32_t block);
  void CheckTree() const;
  void CheckNode(int32_t block, bool listed, bool held) const;

  const int32_t block_size_;
  const int32_t max_compared_;
  CacheRoots roots_;
  EvictionQueue evictable_;             // the leaves that nobody holds
  std::vector<Node> nodes_;             // by block
  std::vector<int32_t> tokens_;         // [num_blocks, block_size]
  size_t mask_ = 0;                     // buckets - 1
  std::vector<int32_t> child_buckets_;  // first node of a chain, newest first; -1: none
  std::vector<int32_t> whole_buckets_;
};

}  // namespace quire::engine
