// Compares PrefixCache on random trees with a naive cache, which searches a list of nodes.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <rapidcheck.h>
#include <vector>

#include "gtest/gtest.h"

#include "engine/kv/prefix_cache.h"
#include "tests/testing/pick.h"

namespace quire::engine {
namespace {

using testing::Pick;
using testing::PickOf;
using Tokens = std::vector<int32_t>;

// A naive cache that follows the definition in the header of PrefixCache.
class NaiveCache {
 public:
  struct Node {
    RootId root = -1;
    int32_t parent = -1;
    Tokens tokens;
    bool held = true;
    int64_t unheld_since = 0;
    int64_t used = 0;  // clock_ when the node was listed or last found in part
    // clock_ when the node became evictable; negative if its last child left; 0: not evictable
    int64_t evictable_since = 0;
  };

  NaiveCache(int32_t num_blocks, int32_t block_size, int32_t max_compared)
      : block_size_(block_size), max_compared_(max_compared), nodes_(num_blocks) {}

  // The functions of a block pool that PrefixCache::CheckInvariants calls. A block is held by one
  // table or by nobody.
  int32_t num_blocks() const { return static_cast<int32_t>(nodes_.size()); }
  bool listed(int32_t block) const { return nodes_[block].has_value(); }
  int32_t refs(int32_t block) const { return listed(block) && nodes_[block]->held ? 1 : 0; }

  Node& node(int32_t block) { return *nodes_[block]; }
  bool IsWhole(int32_t block) const { return std::ssize(nodes_[block]->tokens) == block_size_; }
  template <typename Predicate>
  std::vector<int32_t> Blocks(Predicate predicate) const {
    std::vector<int32_t> blocks;
    for (int32_t i = 0; i < num_blocks(); ++i) {
      if (nodes_[i] && predicate(i, *nodes_[i])) blocks.push_back(i);
    }
    return blocks;
  }
  std::vector<int32_t> Children(int32_t block) const {
    return Blocks([&](int32_t, const Node& node) { return node.parent == block; });
  }
  // Returns all tokens from the root to the end of `block`.
  Tokens PathTo(int32_t block) const {
    if (block < 0) return {};
    Tokens path = PathTo(nodes_[block]->parent);
    path.insert(path.end(), nodes_[block]->tokens.begin(), nodes_[block]->tokens.end());
    return path;
  }

  int32_t FindWhole(RootId root, int32_t parent, const Tokens& tokens) const {
    const std::vector<int32_t> found = Blocks([&](int32_t, const Node& node) {
      return node.root == root && node.parent == parent && node.tokens == tokens;
    });
    return std::ssize(tokens) == block_size_ && !found.empty() ? found.front() : -1;
  }

  PrefixCache::Match Find(RootId root, Tokens tokens, std::vector<int32_t>& whole) {
    PrefixCache::Match match;
    int32_t parent = -1;
    while (std::ssize(tokens) >= block_size_) {
      const int32_t block =
          FindWhole(root, parent, Tokens(tokens.begin(), tokens.begin() + block_size_));
      if (block < 0) break;
      whole.push_back(block);
      ++match.num_whole;
      parent = block;
      tokens.erase(tokens.begin(), tokens.begin() + block_size_);
    }
    if (tokens.empty()) return match;
    std::vector<int32_t> compared = Blocks([&](int32_t, const Node& node) {
      return node.root == root && node.parent == parent && node.tokens[0] == tokens[0];
    });
    std::ranges::sort(compared, std::greater<>(), [&](int32_t i) { return nodes_[i]->used; });
    compared.resize(std::min<size_t>(compared.size(), max_compared_));
    for (const int32_t block : compared) {
      const auto matched = static_cast<int32_t>(
          std::ranges::mismatch(nodes_[block]->tokens, tokens).in2 - tokens.begin());
      if (matched > match.partial_tokens) {
        match.partial_tokens = matched;
        match.partial_block = block;
      }
    }
    if (match.partial_block >= 0) nodes_[match.partial_block]->used = ++clock_;
    return match;
  }

  void List(int32_t block, RootId root, int32_t parent, Tokens tokens) {
    nodes_[block] =
        Node{.root = root, .parent = parent, .tokens = std::move(tokens), .used = ++clock_};
    Update();
  }
  void Unlist(int32_t block) {
    nodes_[block].reset();
    Update(/*child_left=*/true);
  }
  void Hold(int32_t block, bool held, int64_t now_ms) {
    nodes_[block]->held = held;
    nodes_[block]->unheld_since = now_ms;
    Update();
  }
  // Nodes are evicted by the slot in which they were held last.
  int32_t Evict() {
    std::vector<int32_t> evictable =
        Blocks([](int32_t, const Node& node) { return node.evictable_since != 0; });
    if (evictable.empty()) return -1;
    const int32_t block = *std::ranges::min_element(evictable, {}, [&](int32_t i) {
      const int64_t slot = nodes_[i]->unheld_since / EvictionQueue::kSlotMs;
      return std::pair(slot, nodes_[i]->evictable_since);
    });
    Unlist(block);
    return block;
  }

 private:
  // Records when nodes become evictable. An operation makes at most one node evictable.
  void Update(bool child_left = false) {
    for (const int32_t i : Blocks([](int32_t, const Node&) { return true; })) {
      Node& node = *nodes_[i];
      if (node.held || !Children(i).empty()) {
        node.evictable_since = 0;
      } else if (node.evictable_since == 0) {
        node.evictable_since = child_left ? -++clock_ : ++clock_;
      }
    }
  }

  const int32_t block_size_;
  const int32_t max_compared_;
  int64_t clock_ = 0;
  std::vector<std::optional<Node>> nodes_;
};

struct Totals {
  int64_t whole = 0;    // whole blocks found
  int64_t partial = 0;  // blocks found in part
  int64_t evictions = 0;
  int64_t parents = 0;    // nodes that have a parent
  int64_t completed = 0;  // blocks completed by Append
};

Tokens RandomTokens(int low, int high) {
  Tokens tokens(Pick(low, high));
  for (int32_t& token : tokens) token = Pick(0, 1);
  return tokens;
}

class World {
 public:
  explicit World(Totals& totals) : totals_(totals) {}

  void Operate() {
    switch (Pick(0, 7)) {
      case 0:
      case 1:
        List();
        break;
      case 2:
        Append();
        break;
      case 3:
        Release();
        break;
      case 4:
        HoldAgain();
        break;
      case 5:
        Unlist();
        break;
      case 6:
        Evict();
        break;
      case 7:
        Find();
        break;
    }
    Check();
  }

  // Unlists all nodes, leaves first, and releases the roots.
  void Empty() {
    for (;;) {
      const std::vector<int32_t> leaves = naive_.Blocks(
          [&](int32_t i, const NaiveCache::Node&) { return naive_.Children(i).empty(); });
      if (leaves.empty()) break;
      cache_.Unlist(leaves[0]);
      naive_.Unlist(leaves[0]);
      Check();
    }
    for (const RootId root : roots_) cache_.roots().Release(root);
    RC_ASSERT(cache_.roots().size() == 0);
  }

 private:
  using Node = NaiveCache::Node;

  void List() {
    int32_t block = 0;
    while (block < kNumBlocks && naive_.listed(block)) ++block;
    if (block == kNumBlocks) return;
    RootId root = roots_[Pick(0, 1)];
    const int32_t parent =
        Pick(0, 3) == 0 ? -1 : PickOf(naive_.Blocks([&](int32_t i, const Node& node) {
          return node.held && naive_.IsWhole(i);
        }));
    if (parent >= 0) root = naive_.node(parent).root;
    const Tokens tokens = RandomTokens(1, block_size_);
    if (naive_.FindWhole(root, parent, tokens) >= 0) return;
    cache_.List(block, root, parent, tokens);
    naive_.List(block, root, parent, tokens);
    totals_.parents += parent >= 0 ? 1 : 0;
  }

  void Append() {
    const int32_t block = PickOf(naive_.Blocks(
        [&](int32_t i, const Node& node) { return node.held && !naive_.IsWhole(i); }));
    if (block < 0) return;
    Node& node = naive_.node(block);
    const Tokens more = RandomTokens(1, block_size_ - static_cast<int>(node.tokens.size()));
    Tokens all = node.tokens;
    all.insert(all.end(), more.begin(), more.end());
    if (naive_.FindWhole(node.root, node.parent, all) >= 0) return;
    cache_.Append(block, more);
    node.tokens = all;
    totals_.completed += naive_.IsWhole(block) ? 1 : 0;
  }

  void Release() {
    const int32_t block = PickOf(naive_.Blocks([&](int32_t i, const Node& node) {
      const std::vector<int32_t> children = naive_.Children(i);
      return node.held &&
             std::ranges::none_of(children, [&](int32_t child) { return naive_.node(child).held; });
    }));
    if (block < 0) return;
    now_ms_ += Pick(0, 2) * EvictionQueue::kSlotMs / 2;
    cache_.MarkUnheld(block, now_ms_);
    naive_.Hold(block, false, now_ms_);
  }

  void HoldAgain() {
    const int32_t block = PickOf(naive_.Blocks([&](int32_t, const Node& node) {
      return !node.held && (node.parent < 0 || naive_.node(node.parent).held);
    }));
    if (block < 0) return;
    cache_.MarkHeld(block, now_ms_);
    naive_.Hold(block, true, now_ms_);
  }

  void Unlist() {
    const int32_t block =
        PickOf(naive_.Blocks([&](int32_t i, const Node&) { return naive_.Children(i).empty(); }));
    if (block < 0) return;
    cache_.Unlist(block);
    naive_.Unlist(block);
  }

  void Evict() {
    const int32_t block = naive_.Evict();
    RC_ASSERT(cache_.Evict(now_ms_) == block);
    totals_.evictions += block >= 0 ? 1 : 0;
  }

  // Looks up a part of the path to a random node, followed by random tokens.
  void Find() {
    const int32_t block = PickOf(naive_.Blocks([](int32_t, const Node&) { return true; }));
    const RootId root = block < 0 || Pick(0, 3) == 0 ? roots_[Pick(0, 1)] : naive_.node(block).root;
    Tokens tokens = naive_.PathTo(block);
    tokens.resize(Pick(0, static_cast<int>(tokens.size())));
    const Tokens more = RandomTokens(0, 3);
    tokens.insert(tokens.end(), more.begin(), more.end());

    std::vector<int32_t> whole, expected_whole;
    const PrefixCache::Match match = cache_.Find(root, tokens, &whole);
    const PrefixCache::Match expected = naive_.Find(root, tokens, expected_whole);
    RC_ASSERT(whole == expected_whole);
    RC_ASSERT(match.num_whole == expected.num_whole);
    RC_ASSERT(match.partial_block == expected.partial_block);
    RC_ASSERT(match.partial_tokens == expected.partial_tokens);
    totals_.whole += match.num_whole;
    totals_.partial += match.partial_block >= 0 ? 1 : 0;
  }

  void Check() {
    cache_.CheckInvariants(naive_);
    for (int32_t i = 0; i < kNumBlocks; ++i) {
      RC_ASSERT(cache_.IsListed(i) == naive_.listed(i));
      if (!naive_.listed(i)) continue;
      const Node& node = naive_.node(i);
      RC_ASSERT(std::ranges::equal(cache_.Tokens(i), node.tokens));
      if (naive_.IsWhole(i)) RC_ASSERT(cache_.FindWhole(node.root, node.parent, node.tokens) == i);
    }
  }

  static constexpr int32_t kNumBlocks = 12;

  Totals& totals_;
  const int32_t block_size_ = Pick(1, 4);
  const int32_t max_compared_ = Pick(1, 4);
  // ReuseClasses would give other victims. The tree is the same under both policies.
  PrefixCache cache_{kNumBlocks, block_size_, max_compared_, EvictionPolicy::kRecency};
  NaiveCache naive_{kNumBlocks, block_size_, max_compared_};
  const RootId roots_[2] = {cache_.roots().Acquire("a"), cache_.roots().Acquire("b")};
  int64_t now_ms_ = 0;
};

TEST(PrefixCachePropertyTest, IsAListThatIsSearched) {
  Totals totals;
  EXPECT_TRUE(rc::check([&] {
    World world(totals);
    for (int i = Pick(0, 150); i > 0; --i) world.Operate();
    world.Empty();
  }));
  EXPECT_GT(totals.whole, 100);
  EXPECT_GT(totals.partial, 100);
  EXPECT_GT(totals.evictions, 100);
  EXPECT_GT(totals.parents, 100);
  EXPECT_GT(totals.completed, 100);
}

}  // namespace
}  // namespace quire::engine
