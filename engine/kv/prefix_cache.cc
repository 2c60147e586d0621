#include "engine/kv/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <xxhash.h>

#include "base/check.h"
#include "base/math.h"

namespace quire::engine {
namespace {

// Loads an element that is needed soon. Nothing waits for its value. A prefetch may be dropped when
// its page is not in the TLB, and was here (Zen 4): the line was missing when it was needed.
void Touch(const int32_t& element) { asm volatile("" : : "r"(element)); }

}  // namespace

PrefixCache::PrefixCache(int32_t num_blocks, int32_t block_size, int32_t max_compared,
                         EvictionPolicy policy)
    : block_size_(block_size),
      max_compared_(max_compared),
      policy_(policy),
      classes_(num_blocks),
      evictable_(num_blocks, ReuseClasses::kNumClasses),
      nodes_(num_blocks),
      kin_(num_blocks),
      tokens_(int64_t{num_blocks} * block_size) {
  QUIRE_CHECK(block_size > 0) << "block_size " << block_size;
  const size_t buckets = std::bit_ceil(2 * static_cast<size_t>(num_blocks));
  mask_ = buckets - 1;
  child_buckets_.assign(buckets, -1);
  whole_buckets_.assign(buckets, -1);
}

PrefixCache::NodeKey PrefixCache::KeyOf(RootId root, int32_t block) const {
  if (block < 0) return {.index = -1 - root, .generation = roots_.generation(root)};
  return {.index = block, .generation = nodes_[block].generation};
}

const ChainHash& PrefixCache::HashOf(NodeKey key) const {
  return key.index < 0 ? roots_.hash(-1 - key.index) : nodes_[key.index].hash;
}

ChainHash PrefixCache::Chain(const ChainHash& parent, std::span<const int32_t> tokens) const {
  const XXH128_hash_t own = XXH3_128bits(tokens.data(), tokens.size_bytes());
  const uint64_t both[4] = {parent.low, parent.high, own.low64, own.high64};
  const XXH128_hash_t chained = XXH3_128bits(both, sizeof(both));
  return {.low = chained.low64, .high = chained.high64};
}

int32_t PrefixCache::Lookup(const ChainHash& hash, NodeKey parent,
                            std::span<const int32_t> tokens) const {
  for (int32_t i = whole_buckets_[WholeBucket(hash)]; i >= 0; i = nodes_[i].next_whole) {
    const Node& node = nodes_[i];
    if (node.hash == hash && node.parent == parent && std::ranges::equal(Tokens(i), tokens)) {
      return i;
    }
  }
  return -1;
}

PrefixCache::Match PrefixCache::Find(RootId root, std::span<const int32_t> tokens,
                                     std::vector<int32_t>* whole) {
  Match match;
  NodeKey parent = KeyOf(root, -1);
  while (tokens.size() >= static_cast<size_t>(block_size_)) {
    const std::span<const int32_t> front = tokens.first(block_size_);
    const int32_t block = Lookup(Chain(HashOf(parent), front), parent, front);
    if (block < 0) break;
    whole->push_back(block);
    ++match.num_whole;
    parent = KeyOf(root, block);
    tokens = tokens.subspan(block_size_);
  }
  if (tokens.empty()) return match;

  int32_t compared = 0;
  for (int32_t i = child_buckets_[ChildBucket(parent, tokens[0])];
       i >= 0 && compared < max_compared_; i = nodes_[i].next_child) {
    const std::span<const int32_t> known = Tokens(i);
    if (nodes_[i].parent != parent || known[0] != tokens[0]) continue;
    ++compared;
    const size_t limit = std::min(known.size(), tokens.size());
    const auto [end, unused] = std::mismatch(known.begin(), known.begin() + limit, tokens.begin());
    const auto matched = static_cast<int32_t>(end - known.begin());
    if (matched > match.partial_tokens) {
      match.partial_block = i;
      match.partial_tokens = matched;
    }
  }
  if (match.partial_block >= 0) {
    // The block moves to the front of its chain, so that the next Find compares it first.
    UnlinkChild(match.partial_block);
    LinkChild(match.partial_block);
  }
  return match;
}

int32_t PrefixCache::FindWhole(RootId root, int32_t parent, std::span<const int32_t> tokens,
                               const ChainHash& hash) const {
  classes_.Prefetch(hash);  // for Append
  return Lookup(hash, KeyOf(root, parent), tokens);
}

void PrefixCache::PrefetchBuckets(RootId root, int32_t parent, int32_t first_token,
                                  const ChainHash& hash) const {
  classes_.Prefetch(hash);
  __builtin_prefetch(&whole_buckets_[WholeBucket(hash)], 1);
  __builtin_prefetch(&child_buckets_[ChildBucket(KeyOf(root, parent), first_token)], 1);
}

void PrefixCache::PrefetchChain(const ChainHash& hash) const {
  const int32_t first = whole_buckets_[WholeBucket(hash)];
  if (first >= 0) __builtin_prefetch(&nodes_[first], 1);
}

void PrefixCache::List(int32_t block, RootId root, int32_t parent, std::span<const int32_t> tokens,
                       const ChainHash* whole) {
  Node& node = nodes_[block];
  QUIRE_CHECK(!IsListed(block) && !tokens.empty() &&
              tokens.size() <= static_cast<size_t>(block_size_))
      << "block " << block << ", " << tokens.size() << " tokens";
  node.parent = KeyOf(root, parent);
  node.root = root;
  ++node.generation;
  node.num_children = 0;
  node.num_uses = 0;
  node.held = true;
  if (parent < 0) {
    roots_.AddRef(root);
    if (root >= std::ssize(first_of_root_)) first_of_root_.resize(root + 1, -1);
    ++num_beginnings_;
  } else {
    QUIRE_CHECK(nodes_[parent].num_tokens == block_size_ && nodes_[parent].held)
        << "parent " << parent << " of block " << block;
    ++nodes_[parent].num_children;
  }
  LinkSibling(block);
  tokens_[int64_t{block} * block_size_] = tokens[0];
  LinkChild(block);
  Append(block, tokens, whole);
}

void PrefixCache::Append(int32_t block, std::span<const int32_t> tokens, const ChainHash* whole) {
  Node& node = nodes_[block];
  QUIRE_CHECK(node.num_tokens + tokens.size() <= static_cast<size_t>(block_size_))
      << "block " << block << ", " << node.num_tokens << " + " << tokens.size() << " tokens";
  std::ranges::copy(tokens, tokens_.begin() + int64_t{block} * block_size_ + node.num_tokens);
  node.num_tokens += static_cast<int32_t>(tokens.size());
  if (node.num_tokens < block_size_ || tokens.empty()) return;
  node.hash = whole != nullptr ? *whole : Chain(HashOf(node.parent), Tokens(block));
  node.num_uses = classes_.UsesOf(node.hash);
  LinkWhole(block);
}

void PrefixCache::Unlist(int32_t block) {
  Node& node = nodes_[block];
  QUIRE_CHECK(IsListed(block) && node.num_children == 0)
      << "block " << block << ", " << node.num_children << " children";
  if (evictable_.Contains(block)) evictable_.Remove(block);
  if (node.num_tokens == block_size_) UnlinkWhole(block);
  UnlinkChild(block);
  UnlinkSibling(block);
  node.num_tokens = 0;
  if (node.parent.index < 0) {
    --num_beginnings_;
    roots_.Release(node.root);
    return;
  }
  Node& parent = nodes_[node.parent.index];
  QUIRE_CHECK(parent.generation == node.parent.generation) << "block " << block << " is an orphan";
  if (--parent.num_children > 0 || parent.held) return;
  // A path is evicted to its beginning before the next path loses a block.
  Enqueue(node.parent.index, EvictionQueue::End::kFirst);
  PrefetchUnlist(node.parent.index);
}

// Begins to load what the eviction of `block`, which is likely to be next, and that of its parent
// touch. Otherwise evictions would be one miss of the CPU cache after another.
void PrefixCache::PrefetchUnlist(int32_t block) const {
  const Node& node = nodes_[block];
  Touch(whole_buckets_[WholeBucket(node.hash)]);
  __builtin_prefetch(&kin_[block], 1);
  classes_.Prefetch(node.hash);
  if (node.previous_child >= 0) {
    __builtin_prefetch(&nodes_[node.previous_child], 1);
  } else {
    const int32_t first_token = tokens_[int64_t{block} * block_size_];
    __builtin_prefetch(&child_buckets_[ChildBucket(node.parent, first_token)], 1);
  }
  if (node.next_child >= 0) __builtin_prefetch(&nodes_[node.next_child], 1);
  if (node.parent.index < 0) return;
  Prefetch(node.parent.index);
  __builtin_prefetch(&kin_[node.parent.index], 1);
}

CacheUse PrefixCache::BeginUse(RootId root, std::span<const int32_t> tokens,
                               std::span<const int32_t> whole, int64_t now_ms) {
  if (policy_ == EvictionPolicy::kRecency) return {};
  hashes_.clear();
  for (const int32_t block : whole) hashes_.push_back(nodes_[block].hash);
  // The chain of a root on a prefix begins after the blocks of the prefix.
  const bool begins = std::ssize(whole) * block_size_ <= roots_.base_tokens(root);
  ChainHash parent = begins ? roots_.hash(root) : hashes_.back();
  for (size_t begin = whole.size() * block_size_; begin + block_size_ <= tokens.size();
       begin += block_size_) {
    hashes_.push_back(parent = Chain(parent, tokens.subspan(begin, block_size_)));
  }
  return classes_.Begin(hashes_, std::ssize(whole), base::CeilDiv(std::ssize(tokens), block_size_),
                        now_ms);
}

void PrefixCache::EndUse(const CacheUse& use, const CacheUseEnd& end,
                         std::span<const int32_t> table, int64_t now_ms) {
  if (policy_ == EvictionPolicy::kRecency) return;
  const auto use_class = static_cast<uint8_t>(classes_.End(use, end, now_ms));
  const bool counts = use.is_first && !end.comes_back;
  for (const int32_t block : table) {
    if (!IsListed(block)) continue;
    Node& node = nodes_[block];
    node.use_class = use_class;
    if (counts && node.num_uses < UINT8_MAX) ++node.num_uses;
  }
}

int32_t PrefixCache::ReuseClassOf(const Node& node) const {
  if (policy_ == EvictionPolicy::kRecency) return 0;
  if (node.use_class == ReuseClasses::kComingBack) return node.use_class;
  if (node.num_tokens < block_size_) return ReuseClasses::kPartial;
  if (node.num_uses >= ReuseClasses::kHotUses) return ReuseClasses::HotClass(node.num_uses);
  return node.use_class;
}

void PrefixCache::Enqueue(int32_t block, EvictionQueue::End end) {
  const Node& node = nodes_[block];
  const int32_t reuse_class =
      roots_.dead(node.root) ? ReuseClasses::kDead : int32_t{node.reuse_class};
  evictable_.Push(block, reuse_class, node.unheld_since_ms, end);
}

void PrefixCache::MarkUnheld(int32_t block, int64_t now_ms) {
  Node& node = nodes_[block];
  QUIRE_CHECK(IsListed(block) && node.held) << "block " << block;
  node.held = false;
  node.unheld_since_ms = now_ms;
  node.reuse_class = static_cast<uint8_t>(ReuseClassOf(node));
  evictable_.Advance(now_ms);
  if (node.num_children == 0) Enqueue(block, EvictionQueue::End::kLast);
}

void PrefixCache::MarkHeld(int32_t block, int64_t now_ms) {
  Node& node = nodes_[block];
  QUIRE_CHECK(IsListed(block) && !node.held) << "block " << block;
  node.held = true;
  if (ReuseClasses::IsCounted(node.reuse_class)) {
    classes_.NoteReturn(node.reuse_class, now_ms - node.unheld_since_ms);
  }
  if (node.num_children == 0) evictable_.Remove(block);
}

int32_t PrefixCache::Evict(int64_t now_ms) {
  evictable_.Advance(now_ms);
  const int32_t block = evictable_.Pop(classes_.ranks());
  if (block < 0) return -1;
  const Node& node = nodes_[block];
  if (ReuseClasses::IsCounted(node.reuse_class)) {
    classes_.NoteEviction(node.reuse_class, now_ms - node.unheld_since_ms);
  }
  if (node.num_tokens == block_size_) classes_.RememberUses(node.hash, node.num_uses);
  Unlist(block);
  return block;
}

void PrefixCache::EndPrefix(PinId prefix) {
  if (roots_.EndPrefix(prefix)) num_to_sweep_ = static_cast<int32_t>(nodes_.size());
}

void PrefixCache::Sweep(int32_t at_most) {
  for (int32_t left = std::min(at_most, num_to_sweep_); left > 0; --left, --num_to_sweep_) {
    const int32_t block = next_to_sweep_;
    next_to_sweep_ = block + 1 < std::ssize(nodes_) ? block + 1 : 0;
    if (!evictable_.Contains(block) || !roots_.dead(nodes_[block].root)) continue;
    evictable_.Remove(block);
    Enqueue(block, EvictionQueue::End::kLast);
  }
}

size_t PrefixCache::ChildBucket(NodeKey parent, int32_t first_token) const {
  // Fibonacci hashing of parent index, generation and first token.
  uint64_t h = uint64_t{static_cast<uint32_t>(parent.index)} << 32 | parent.generation;
  h = (h ^ (h >> 29)) * 0x9e3779b97f4a7c15u + static_cast<uint32_t>(first_token);
  h = (h ^ (h >> 32)) * 0x9e3779b97f4a7c15u;
  return (h >> 32) & mask_;
}

void PrefixCache::LinkSibling(int32_t block) {
  int32_t& first = FirstSibling(nodes_[block]);
  kin_[block] = {.first_child = -1, .next_sibling = first, .previous_sibling = -1};
  if (first >= 0) kin_[first].previous_sibling = block;
  first = block;
}

void PrefixCache::UnlinkSibling(int32_t block) {
  const Kin& kin = kin_[block];
  (kin.previous_sibling < 0 ? FirstSibling(nodes_[block])
                            : kin_[kin.previous_sibling].next_sibling) = kin.next_sibling;
  if (kin.next_sibling >= 0) kin_[kin.next_sibling].previous_sibling = kin.previous_sibling;
}

void PrefixCache::LinkChild(int32_t block) {
  Node& node = nodes_[block];
  int32_t& first = child_buckets_[ChildBucket(node.parent, tokens_[int64_t{block} * block_size_])];
  node.previous_child = -1;
  node.next_child = first;
  if (first >= 0) nodes_[first].previous_child = block;
  first = block;
}

void PrefixCache::UnlinkChild(int32_t block) {
  const Node& node = nodes_[block];
  if (node.previous_child >= 0) {
    nodes_[node.previous_child].next_child = node.next_child;
  } else {
    child_buckets_[ChildBucket(node.parent, tokens_[int64_t{block} * block_size_])] =
        node.next_child;
  }
  if (node.next_child >= 0) nodes_[node.next_child].previous_child = node.previous_child;
}

void PrefixCache::LinkWhole(int32_t block) {
  int32_t& first = whole_buckets_[WholeBucket(nodes_[block].hash)];
  nodes_[block].next_whole = first;
  first = block;
}

void PrefixCache::UnlinkWhole(int32_t block) {
  int32_t* link = &whole_buckets_[WholeBucket(nodes_[block].hash)];
  while (*link != block) link = &nodes_[*link].next_whole;
  *link = nodes_[block].next_whole;
}

void PrefixCache::CheckRoots(std::span<const RootId> of_sequences) const {
  std::vector<int64_t> refs(roots_.num_ids(), 0);
  for (const RootId root : of_sequences) ++refs[root];
  for (const Node& node : nodes_) {
    if (node.num_tokens > 0 && node.parent.index < 0) ++refs[node.root];
  }
  int64_t num_used = 0;
  for (RootId root = 0; root < roots_.num_ids(); ++root) {
    QUIRE_CHECK(roots_.refs(root) == refs[root]) << "root " << root << ": " << roots_.refs(root)
                                                 << " references, " << refs[root] << " known";
    num_used += refs[root] > 0 ? 1 : 0;
  }
  QUIRE_CHECK(roots_.size() == num_used) << roots_.size() << " roots, " << num_used << " used";
}

void PrefixCache::CheckTree() const {
  std::vector<int32_t> children(nodes_.size(), 0);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.num_tokens == 0 || node.parent.index < 0) continue;
    const Node& parent = nodes_[node.parent.index];
    QUIRE_CHECK(parent.num_tokens == block_size_ && parent.generation == node.parent.generation &&
                parent.root == node.root)
        << "block " << i << " has lost its parent " << node.parent.index;
    QUIRE_CHECK(parent.held || !node.held) << "block " << i << " is held, its parent is not";
    ++children[node.parent.index];
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].num_tokens == 0) continue;
    QUIRE_CHECK(children[i] == nodes_[i].num_children) << "block " << i;
    int32_t siblings = 0;
    for (int32_t child = kin_[i].first_child; child >= 0; child = kin_[child].next_sibling) {
      QUIRE_CHECK(nodes_[child].parent.index == static_cast<int32_t>(i)) << "block " << child;
      ++siblings;
    }
    QUIRE_CHECK(siblings == children[i]) << "block " << i;
  }
}

void PrefixCache::CheckNode(int32_t block, bool listed, bool held) const {
  const Node& node = nodes_[block];
  QUIRE_CHECK(IsListed(block) == listed) << "block " << block;
  const bool evictable = listed && !held && node.num_children == 0;
  QUIRE_CHECK(evictable_.Contains(block) == evictable) << "block " << block;
  if (!listed) return;
  QUIRE_CHECK(node.held == held) << "block " << block;
  if (node.num_tokens == block_size_) {
    QUIRE_CHECK(Lookup(node.hash, node.parent, Tokens(block)) == block)
        << "block " << block << " is not the only one of its content";
  }
  int32_t i = child_buckets_[ChildBucket(node.parent, Tokens(block)[0])];
  while (i >= 0 && i != block) i = nodes_[i].next_child;
  QUIRE_CHECK(i == block) << "block " << block << " is not among its parent's children";
}

}  // namespace quire::engine
