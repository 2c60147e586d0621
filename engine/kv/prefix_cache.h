#pragma once

// The tree of blocks by their tokens, which finds the longest cached prefix.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/kv/cache_roots.h"
#include "engine/kv/eviction_queue.h"

namespace quire::engine {

// The way in which Find() identifies a whole block. Clients see it and may compare it across
// servers.
inline constexpr std::string_view kHashScheme = "xxh3-128, chained, verified by tokens";

// A listed block is a node: its committed tokens, 1 .. block_size of them, follow those of its
// parent, which is a whole block or a root. A whole block is found by the hash chained over all
// tokens from the root on; its tokens and its parent (index and generation) are then compared, so
// that a collision is a miss. There is one node for each content. Any node, whole or not, is found
// by (parent, first token), to match it in part.
//
// Nodes are held or not (MarkHeld, MarkUnheld); a held node's parent is held. Those not held are
// evicted leaves first, in the order of the step in which they were last held plus a light bonus
// for the work to compute them again. The bonus is kEvictionBonusSteps steps for a whole block at
// the front of a sequence, that much again for each kBonusPositions tokens before it (attention
// reads them), and less for a block that is not full. So a block outlives only others of about its
// own age.
//
// Cost: Find is O(tokens); List, Append, MarkHeld, MarkUnheld and Evict O(log blocks). Nothing but
// roots is allocated after construction. Reference counts are BlockPool's. Not thread-safe.
class PrefixCache {
 public:
  static constexpr int64_t kEvictionBonusSteps = 4;
  static constexpr int64_t kBonusPositions = 8192;
  static constexpr int32_t kMaxCompared = 8;

  // For the best match in part, at most `max_compared` nodes under one (parent, first token) are
  // compared: the last used ones.
  PrefixCache(int32_t num_blocks, int32_t block_size, int32_t max_compared = kMaxCompared);

  CacheRoots& roots() { return roots_; }
  const CacheRoots& roots() const { return roots_; }

  struct Match {
    int32_t num_whole = 0;       // blocks matched whole
    int32_t partial_block = -1;  // the node that matches furthest; -1: none
    int32_t partial_tokens = 0;  // the number of its tokens that match
  };
  // The longest cached prefix of `tokens`. Its whole blocks, in order, are appended to `whole`.
  Match Find(RootId root, std::span<const int32_t> tokens, std::vector<int32_t>* whole);

  // The node of a whole block with these tokens under `parent` (-1: the root itself), or -1.
  int32_t FindWhole(RootId root, int32_t parent, std::span<const int32_t> tokens) const;

  // Makes `block`, which is held, a node. If the tokens fill it, FindWhole() must know no other
  // block of them.
  void List(int32_t block, RootId root, int32_t parent, std::span<const int32_t> tokens);
  // Adds tokens to a node that was not full; the same holds once they fill it.
  void Append(int32_t block, std::span<const int32_t> tokens);
  // Removes a leaf from the tree.
  void Unlist(int32_t block);

  bool IsListed(int32_t block) const { return nodes_[block].num_tokens > 0; }
  bool IsLeaf(int32_t block) const { return nodes_[block].num_children == 0; }
  std::span<const int32_t> Tokens(int32_t block) const {
    return {tokens_.data() + int64_t{block} * block_size_,
            static_cast<size_t>(nodes_[block].num_tokens)};
  }

  // `step`: the step in which the last holder dropped it.
  void MarkUnheld(int32_t block, int64_t step);
  void MarkHeld(int32_t block);
  // Unlists the next leaf that nobody holds; -1 when there is none.
  int32_t Evict();

  // `of_sequences`: the root of each sequence. Aborts if a root's number of references is not the
  // number of these plus that of the nodes directly under it, or if an unused root is kept.
  void CheckRoots(std::span<const RootId> of_sequences) const;
  // Compares the pool's held and listed blocks with the nodes. Aborts on a difference.
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
    ChainHash hash;  // of a whole block
    bool held = true;
    int64_t unheld_since = 0;  // step
    // Links of the two hash indices.
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
