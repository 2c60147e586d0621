#pragma once

// A tree of blocks, indexed by their tokens, that finds the longest cached prefix.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/huge_allocator.h"
#include "engine/kv/cache_roots.h"
#include "engine/kv/eviction_queue.h"
#include "engine/kv/reuse_classes.h"

namespace quire::engine {

// Names the way in which Find() identifies a whole block. Clients see this name and may compare it
// across servers.
inline constexpr std::string_view kHashScheme = "xxh3-128, chained, verified by tokens";

// The order in which a PrefixCache evicts blocks; see there.
enum class EvictionPolicy : uint8_t { kReuse, kRecency };

// Each listed block is a node with 1 .. block_size committed tokens. They follow the tokens of the
// node's parent, which is a whole (full) block or a root. A whole block is found by a hash chained
// over all tokens from the root on. The block's tokens and parent (index and generation) are then
// compared, so that a hash collision is a miss. No two whole blocks have the same parent and the
// same tokens. For partial matches any node, whole or not, is found by (parent, first token).
//
// A node is held or not (MarkHeld, MarkUnheld). The parent of a held node is held. Nodes that are
// not held are evicted, leaves first. Which leaf is next follows from the policy: with kReuse the
// leaf whose use again is least due (ReuseClasses), with kRecency the leaf that was used least
// recently, to a slot of the EvictionQueue. Leaves under a dead root (see CacheRoots) come first.
//
// Cost: Find and BeginUse are O(tokens); List, Append, MarkHeld, MarkUnheld and Evict O(1). Nothing
// but roots is allocated after construction. BlockPool counts references. Not thread-safe.
class PrefixCache {
 public:
  static constexpr int32_t kMaxCompared = 8;

  // To find the best partial match, Find looks at nodes with the right parent and first token. It
  // compares the tokens of at most `max_compared` of these, the most recently used ones first.
  PrefixCache(int32_t num_blocks, int32_t block_size, int32_t max_compared = kMaxCompared,
              EvictionPolicy policy = EvictionPolicy::kReuse);

  CacheRoots& roots() { return roots_; }
  const CacheRoots& roots() const { return roots_; }

  struct Match {
    int32_t num_whole = 0;       // blocks matched whole
    int32_t partial_block = -1;  // the node that matches furthest; -1: none
    int32_t partial_tokens = 0;  // the number of partial_block's tokens that match
  };
  // Returns the longest cached prefix of `tokens`. Appends the prefix's whole blocks, in order, to
  // `whole`.
  Match Find(RootId root, std::span<const int32_t> tokens, std::vector<int32_t>* whole);

  // Returns the whole block with these tokens under `parent` (-1: the root itself), or -1. `hash`
  // is HashOf them.
  int32_t FindWhole(RootId root, int32_t parent, std::span<const int32_t> tokens) const {
    return FindWhole(root, parent, tokens, HashOf(root, parent, tokens));
  }
  int32_t FindWhole(RootId root, int32_t parent, std::span<const int32_t> tokens,
                    const ChainHash& hash) const;
  // Returns the hash of a whole block with these tokens under `parent`.
  ChainHash HashOf(RootId root, int32_t parent, std::span<const int32_t> tokens) const {
    return Chain(HashOf(KeyOf(root, parent)), tokens);
  }

  // Makes `block` a node under `parent` (-1: under the root). The block must be held. If `tokens`
  // fill the block, FindWhole() must not find another block with these tokens under `parent`.
  // `whole` may be their hash then, which is computed otherwise.
  void List(int32_t block, RootId root, int32_t parent, std::span<const int32_t> tokens,
            const ChainHash* whole = nullptr);
  // Adds tokens to a node that is not full. If they fill the node, what List says of that applies,
  // with all tokens of the node.
  void Append(int32_t block, std::span<const int32_t> tokens, const ChainHash* whole = nullptr);
  // Removes a leaf from the tree.
  void Unlist(int32_t block);

  // Begins to load what Append() to the block touches.
  void Prefetch(int32_t block) const {
    __builtin_prefetch(&nodes_[block], 1);
    __builtin_prefetch(&tokens_[int64_t{block} * block_size_], 1);
  }
  // Begins to load what else List() of the block touches, or Append() that fills it.
  void PrefetchLinks(int32_t block, int32_t parent) const {
    __builtin_prefetch(&kin_[block], 1);
    __builtin_prefetch(&kin_[parent], 1);
    __builtin_prefetch(&nodes_[parent], 1);
  }
  // Begin to load what else FindWhole() and List() of a whole block touch; the second function what
  // lies behind the first.
  void PrefetchBuckets(RootId root, int32_t parent, int32_t first_token,
                       const ChainHash& hash) const;
  void PrefetchChain(const ChainHash& hash) const;

  bool IsListed(int32_t block) const { return nodes_[block].num_tokens > 0; }
  // The class of a block that is not held; see ReuseClasses.
  int32_t reuse_class(int32_t block) const { return nodes_[block].reuse_class; }
  RootId root(int32_t block) const { return nodes_[block].root; }
  // Differs each time that the block is listed anew.
  uint32_t generation(int32_t block) const { return nodes_[block].generation; }
  int32_t num_children(int32_t block) const { return nodes_[block].num_children; }
  // These walk the tree. Blocks with one parent are siblings, the one listed last first; -1: none.
  int32_t FirstOf(RootId root) const {
    return root < std::ssize(first_of_root_) ? first_of_root_[root] : -1;
  }
  int32_t FirstChild(int32_t block) const { return kin_[block].first_child; }
  int32_t NextSibling(int32_t block) const { return kin_[block].next_sibling; }
  // The blocks that follow a root.
  int64_t num_beginnings() const { return num_beginnings_; }
  bool IsLeaf(int32_t block) const { return nodes_[block].num_children == 0; }
  std::span<const int32_t> Tokens(int32_t block) const {
    return {tokens_.data() + int64_t{block} * block_size_,
            static_cast<size_t>(nodes_[block].num_tokens)};
  }

  // A request with the prompt `tokens` begins to use the cache, of which Find() gave it the blocks
  // `whole`. `now_ms`: see ReuseClasses.
  CacheUse BeginUse(RootId root, std::span<const int32_t> tokens, std::span<const int32_t> whole,
                    int64_t now_ms);
  // The request stops to use the cache, whose blocks it then releases. `table` has these blocks;
  // those that are not listed are passed over.
  void EndUse(const CacheUse& use, const CacheUseEnd& end, std::span<const int32_t> table,
              int64_t now_ms);

  // `now_ms` is the time at which the last holder dropped the block, or the first one held it.
  void MarkUnheld(int32_t block, int64_t now_ms);
  void MarkHeld(int32_t block, int64_t now_ms);
  // Unlists and returns the next leaf that nobody holds. Returns -1 when there is none.
  int32_t Evict(int64_t now_ms);
  // Returns the block that Evict is likely to return next; -1 when that is not known.
  int32_t LikelyNext() const { return evictable_.LikelyNext(); }

  // Ends a prefix of roots(), so that the roots on it die. Sweep() then moves their leaves to the
  // front of the order of eviction. It looks at no more than `at_most` blocks in one call.
  void EndPrefix(PinId prefix);
  void Sweep(int32_t at_most);

  // `of_sequences` has the root of each sequence. Aborts if a root's reference count is not the
  // number of sequences with this root plus the number of nodes directly under it. Also aborts if
  // an unused root is kept.
  void CheckRoots(std::span<const RootId> of_sequences) const;
  // Compares the pool's held and listed blocks with the nodes. Aborts on a difference.
  template <typename Pool>
  void CheckInvariants(const Pool& pool) const {
    CheckTree();
    for (int32_t i = 0; i < pool.num_blocks(); ++i) CheckNode(i, pool.listed(i), IsHeld(pool, i));
  }

 private:
  // Identifies a parent by an index and a generation. The index of a block is the block itself, and
  // the index of a root is -1 - root.
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
    ChainHash hash;               // set for whole blocks only
    int64_t unheld_since_ms = 0;  // the time at which the last holder dropped the block
    bool held = true;
    uint8_t num_uses = 0;     // by requests that have ended
    uint8_t use_class = 0;    // of the request that used the block last
    uint8_t reuse_class = 0;  // of the block, while it is not held
    // Links of the two hash indices.
    int32_t next_child = -1;
    int32_t previous_child = -1;
    int32_t next_whole = -1;
  };
  static_assert(sizeof(Node) == 64, "a node is one line of a CPU cache");
  // The links of the tree, for pictures of it.
  struct Kin {
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    int32_t previous_sibling = -1;
  };

  template <typename Pool>
  static bool IsHeld(const Pool& pool, int32_t block) {
    return pool.refs(block) > 0;
  }
  NodeKey KeyOf(RootId root, int32_t block) const;
  const ChainHash& HashOf(NodeKey key) const;
  ChainHash Chain(const ChainHash& parent, std::span<const int32_t> tokens) const;
  int32_t Lookup(const ChainHash& hash, NodeKey parent, std::span<const int32_t> tokens) const;
  size_t ChildBucket(NodeKey parent, int32_t first_token) const;
  size_t WholeBucket(const ChainHash& hash) const { return hash.low & mask_; }
  void PrefetchUnlist(int32_t block) const;
  int32_t& FirstSibling(const Node& node) {
    return node.parent.index < 0 ? first_of_root_[node.root] : kin_[node.parent.index].first_child;
  }
  void LinkSibling(int32_t block);
  void UnlinkSibling(int32_t block);
  void LinkChild(int32_t block);
  void UnlinkChild(int32_t block);
  void LinkWhole(int32_t block);
  void UnlinkWhole(int32_t block);
  void Enqueue(int32_t block, EvictionQueue::End end);
  int32_t ReuseClassOf(const Node& node) const;
  void CheckTree() const;
  void CheckNode(int32_t block, bool listed, bool held) const;

  const int32_t block_size_;
  const int32_t max_compared_;
  const EvictionPolicy policy_;
  CacheRoots roots_;
  ReuseClasses classes_;
  EvictionQueue evictable_;             // the leaves that nobody holds
  std::vector<ChainHash> hashes_;       // of a prompt; kept for its capacity
  base::HugeVector<Node> nodes_;        // by block
  base::HugeVector<Kin> kin_;           // by block
  base::HugeVector<int32_t> tokens_;    // [num_blocks, block_size]
  std::vector<int32_t> first_of_root_;  // by root; grows with the roots
  int64_t num_beginnings_ = 0;
  int32_t next_to_sweep_ = 0;
  int32_t num_to_sweep_ = 0;
  size_t mask_ = 0;  // buckets - 1
  // The first node of each chain of a hash index; -1: none. A new node becomes the first of its
  // chain.
  base::HugeVector<int32_t> child_buckets_;
  base::HugeVector<int32_t> whole_buckets_;
};

}  // namespace quire::engine
