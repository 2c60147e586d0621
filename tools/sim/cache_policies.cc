#include "tools/sim/cache_policies.h"

#include <algorithm>
#include <deque>
#include <list>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "absl/time/time.h"

#include "engine/kv/block_manager.h"

namespace quire::tools {
namespace {

// A tree of cached blocks. Derived policies choose the leaf to evict.
class TreeCache : public ReplayedCache {
 public:
  explicit TreeCache(int32_t capacity) : capacity_(static_cast<size_t>(capacity)) {}

  int64_t Serve(const TraceRequest& request) final {
    ++num_requests_;
    int64_t num_hits = 0;
    uint64_t parent = 0;
    for (size_t i = 0; i < request.blocks.size(); ++i) {
      const uint64_t id = request.blocks[i];
      auto it = nodes_.find(id);
      if (it != nodes_.end()) {
        ++num_hits;
        it->second.request = num_requests_;
        Used(id, it->second, /*was_cached=*/true);
      } else {
        if (nodes_.size() == capacity_ && !Evict()) break;
        it = nodes_.emplace(id, Node{.parent = parent, .has_parent = i > 0}).first;
        it->second.depth = static_cast<int32_t>(i);
        it->second.request = num_requests_;
        if (i > 0 && nodes_.at(parent).num_children++ == 0) NoLeaf(parent, nodes_.at(parent));
        Used(id, it->second, /*was_cached=*/false);
      }
      parent = id;
    }
    return num_hits;
  }

 protected:
  struct Node {
    uint64_t parent = 0;
    bool has_parent = false;
    int32_t depth = 0;
    int32_t num_children = 0;
    int64_t request = 0;  // the last request that used the block
    double value = 0.0;   // for the derived class, and `count`
    int32_t count = 0;
  };
  bool IsEvictable(const Node& node) const {
    return node.num_children == 0 && node.request != num_requests_;
  }
  // Removes a leaf.
  void Remove(uint64_t id) {
    const Node node = nodes_.at(id);
    nodes_.erase(id);
    if (!node.has_parent) return;
    Node& parent = nodes_.at(node.parent);
    if (--parent.num_children == 0) Leaf(node.parent, parent);
  }
  virtual void Used(uint64_t id, Node& node, bool was_cached) = 0;
  virtual void NoLeaf(uint64_t, Node&) {}  // a leaf has its first child
  virtual void Leaf(uint64_t, Node&) {}    // the last child was evicted
  virtual bool Evict() = 0;

  const size_t capacity_;
  std::unordered_map<uint64_t, Node> nodes_;
  int64_t num_requests_ = 0;
};

// Evicts the leaf of the lowest value; among equals the deepest.
class ByValue : public TreeCache {
 public:
  using TreeCache::TreeCache;

 protected:
  virtual double Value(uint64_t id, const Node& node, bool was_cached) = 0;
  virtual void Evicted(const Node&) {}

 private:
  using Key = std::tuple<double, int32_t, uint64_t>;
  static Key KeyOf(uint64_t id, const Node& node) { return {node.value, -node.depth, id}; }
  void Used(uint64_t id, Node& node, bool was_cached) final {
    leaves_.erase(KeyOf(id, node));
    node.value = Value(id, node, was_cached);
    if (node.num_children == 0) leaves_.insert(KeyOf(id, node));
  }
  void NoLeaf(uint64_t id, Node& node) final { leaves_.erase(KeyOf(id, node)); }
  void Leaf(uint64_t id, Node& node) final { leaves_.insert(KeyOf(id, node)); }
  bool Evict() final {
    for (auto it = leaves_.begin(); it != leaves_.end(); ++it) {
      const uint64_t id = std::get<2>(*it);
      const Node& node = nodes_.at(id);
      if (!IsEvictable(node)) continue;
      Evicted(node);
      leaves_.erase(it);
      Remove(id);
      return true;
    }
    return false;
  }
  std::set<Key> leaves_;
};

class Lru final : public ByValue {
 public:
  using ByValue::ByValue;

 private:
  double Value(uint64_t, const Node&, bool) override { return static_cast<double>(num_requests_); }
};

class Bonus final : public ByValue {
 public:
  Bonus(int32_t capacity, int32_t block_tokens) : ByValue(capacity), block_tokens_(block_tokens) {}

 private:
  double Value(uint64_t, const Node& node, bool) override {
    constexpr double kBonus = 4.0, kPositions = 8192.0;
    return static_cast<double>(num_requests_) +
           kBonus * (1.0 + node.depth * static_cast<double>(block_tokens_) / kPositions);
  }
  const int32_t block_tokens_;
};

class Gdsf final : public ByValue {
 public:
  using ByValue::ByValue;

 private:
  double Value(uint64_t id, const Node&, bool) override { return inflation_ + ++frequencies_[id]; }
  void Evicted(const Node& node) override { inflation_ = std::max(inflation_, node.value); }
  double inflation_ = 0.0;
  std::unordered_map<uint64_t, double> frequencies_;
};

class S3Fifo final : public TreeCache {
 public:
  explicit S3Fifo(int32_t capacity)
      : TreeCache(capacity), small_capacity_(std::max(size_t{1}, capacity_ / 10)) {}

 private:
  void Used(uint64_t id, Node& node, bool was_cached) override {
    if (was_cached) {
      node.count = std::min(node.count + 1, 3);
    } else if (ghosts_.contains(id)) {
      main_.push_back(id);
    } else {
      small_.push_back(id);
    }
  }
  bool Evict() override {
    // Each block may be passed over some times, and lose its count, before it is evicted.
    for (size_t left = 5 * nodes_.size() + 1; left > 0; --left) {
      const bool from_small = small_.size() >= small_capacity_ || main_.empty();
      std::deque<uint64_t>& queue = from_small && !small_.empty() ? small_ : main_;
      const uint64_t id = queue.front();
      queue.pop_front();
      Node& node = nodes_.at(id);
      if (&queue == &small_ && node.count > 1) {
        node.count = 0;
        main_.push_back(id);
      } else if (&queue == &main_ && node.count > 0) {
        --node.count;
        main_.push_back(id);
      } else if (!IsEvictable(node)) {
        main_.push_back(id);
      } else {
        if (&queue == &small_) AddGhost(id);
        Remove(id);
        return true;
      }
    }
    return false;
  }
  void AddGhost(uint64_t id) {
    if (!ghosts_.insert(id).second) return;
    ghost_queue_.push_back(id);
    if (ghost_queue_.size() <= capacity_ - small_capacity_) return;
    ghosts_.erase(ghost_queue_.front());
    ghost_queue_.pop_front();
  }

  const size_t small_capacity_;
  std::deque<uint64_t> small_, main_, ghost_queue_;
  std::set<uint64_t> ghosts_;
};

// The engine's own cache. Requests run one step each.
class EngineCache final : public ReplayedCache {
 public:
  EngineCache(int32_t capacity, int32_t block_tokens, engine::EvictionPolicy policy)
      : block_tokens_(block_tokens),
        blocks_({.num_blocks = capacity,
                 .block_size = block_tokens,
                 .windows = {},
                 .max_step_tokens = 0,
                 .pipeline_depth = 0,
                 .eviction = policy}) {}

  int64_t Serve(const TraceRequest& request) override {
    const std::vector<int32_t> tokens = MakeTokens(request, block_tokens_);
    const auto num_tokens = std::ssize(tokens);
    const absl::Time now = absl::UnixEpoch() + absl::Seconds(request.arrival_seconds);
    blocks_.BeginStep(++step_, now);
    const int64_t num_cached =
        blocks_.StartSequence(kId, "", tokens, {}, /*allow_copy=*/false).num_cached;
    // A prompt that does not fit is cached as far as it goes.
    int64_t num_computed = num_tokens;
    while (!blocks_.TryGrow(kId, num_computed)) num_computed -= block_tokens_;
    blocks_.EndStep(true, &copies_, &shifts_);
    blocks_.CompleteStep(step_);
    blocks_.Commit(kId, tokens, num_computed);
    blocks_.Release(kId, {.num_generated = request.output_tokens});
    return num_cached / block_tokens_;
  }

 private:
  static constexpr engine::SequenceId kId = 1;
  const int32_t block_tokens_;
  engine::BlockManager blocks_;
  int64_t step_ = 0;
  std::vector<kernels::BlockCopy> copies_;
  std::vector<kernels::KeyShift> shifts_;
};

}  // namespace

const std::vector<std::string>& CachePolicies() {
  static const auto* const policies =
      new std::vector<std::string>{"lru", "bonus", "gdsf", "s3fifo", "recency", "reuse"};
  return *policies;
}

std::unique_ptr<ReplayedCache> MakeCache(std::string_view policy, int32_t capacity,
                                         int32_t block_tokens) {
  using engine::EvictionPolicy;
  if (policy == "lru") return std::make_unique<Lru>(capacity);
  if (policy == "bonus") return std::make_unique<Bonus>(capacity, block_tokens);
  if (policy == "gdsf") return std::make_unique<Gdsf>(capacity);
  if (policy == "s3fifo") return std::make_unique<S3Fifo>(capacity);
  if (policy == "recency" || policy == "reuse") {
    return std::make_unique<EngineCache>(
        capacity, block_tokens,
        policy == "reuse" ? EvictionPolicy::kReuse : EvictionPolicy::kRecency);
  }
  return nullptr;
}

}  // namespace quire::tools
