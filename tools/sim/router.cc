#include "tools/sim/router.h"

#include <algorithm>
#include <iterator>
#include <list>
#include <unordered_map>

#include "tools/sim/random.h"

namespace quire::tools {
namespace {

class RoundRobin final : public Router {
 public:
  size_t Choose(const TraceRequest&, std::span<const ReplicaLoad> loads) override {
    return next_++ % loads.size();
  }

 private:
  size_t next_ = 0;
};

// The index of the least load. The search begins at another replica each time.
size_t LeastLoaded(std::span<const ReplicaLoad> loads, size_t first) {
  size_t best = first % loads.size();
  for (size_t k = 1; k < loads.size(); ++k) {
    const size_t i = (first + k) % loads.size();
    if (loads[i].num_tokens < loads[best].num_tokens) best = i;
  }
  return best;
}

class LeastLoadedRouter final : public Router {
 public:
  size_t Choose(const TraceRequest&, std::span<const ReplicaLoad> loads) override {
    return LeastLoaded(loads, next_++);
  }

 private:
  size_t next_ = 0;
};

class PrefixKey final : public Router {
 public:
  explicit PrefixKey(int32_t key_blocks) : key_blocks_(static_cast<size_t>(key_blocks)) {}

  size_t Choose(const TraceRequest& request, std::span<const ReplicaLoad> loads) override {
    uint64_t key = 0;
    for (size_t i = 0; i < std::min(key_blocks_, request.blocks.size()); ++i) {
      key = Mix(key ^ request.blocks[i]);
    }
    int64_t sum = 0;
    for (const ReplicaLoad& load : loads) sum += load.num_tokens;
    const double bound = kMostLoad *
                         static_cast<double>(sum + request.prompt_tokens + request.output_tokens) /
                         static_cast<double>(loads.size());
    // Rendezvous hashing: replicas in the order of a hash of key and replica.
    size_t best = loads.size(), best_in_bound = loads.size();
    const auto weight = [&](size_t i) { return Mix(key + Mix(i)); };
    for (size_t i = 0; i < loads.size(); ++i) {
      if (best == loads.size() || weight(i) > weight(best)) best = i;
      if (static_cast<double>(loads[i].num_tokens) <= bound &&
          (best_in_bound == loads.size() || weight(i) > weight(best_in_bound))) {
        best_in_bound = i;
      }
    }
    return best_in_bound < loads.size() ? best_in_bound : best;
  }

 private:
  static constexpr double kMostLoad = 1.25;
  const size_t key_blocks_;
};

// The blocks that a replica's cache is believed to hold.
class Belief {
 public:
  explicit Belief(int64_t capacity) : capacity_(static_cast<size_t>(capacity)) {}

  size_t NumMatched(const std::vector<uint64_t>& blocks) const {
    size_t num = 0;
    while (num < blocks.size() && places_.contains(blocks[num])) ++num;
    return num;
  }
  void Use(const std::vector<uint64_t>& blocks) {
    for (size_t i = blocks.size(); i-- > 0;) {  // the first block is the most recent one
      const auto it = places_.find(blocks[i]);
      if (it != places_.end()) {
        order_.splice(order_.end(), order_, it->second);
      } else {
        order_.push_back(blocks[i]);
        places_[blocks[i]] = std::prev(order_.end());
      }
    }
    for (; order_.size() > capacity_; order_.pop_front()) places_.erase(order_.front());
  }
  size_t size() const { return order_.size(); }

 private:
  const size_t capacity_;
  std::list<uint64_t> order_;
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places_;
};

class CacheAware final : public Router {
 public:
  CacheAware(size_t num_replicas, int64_t cache_blocks)
      : beliefs_(num_replicas, Belief(cache_blocks)) {}

  size_t Choose(const TraceRequest& request, std::span<const ReplicaLoad> loads) override {
    const auto [least, most] =
        std::ranges::minmax_element(loads, {}, [](const ReplicaLoad& l) { return l.num_requests; });
    size_t chosen = static_cast<size_t>(least - loads.begin());
    if (most->num_requests - least->num_requests <= kMostDifference ||
        static_cast<double>(most->num_requests) <=
            kMostRatio * static_cast<double>(least->num_requests)) {
      chosen = ByCache(request);
    }
    beliefs_[chosen].Use(request.blocks);
    return chosen;
  }
  int64_t num_known_blocks() const override {
    int64_t num = 0;
    for (const Belief& belief : beliefs_) num += static_cast<int64_t>(belief.size());
    return num;
  }

 private:
  static constexpr int64_t kMostDifference = 64;
  static constexpr double kMostRatio = 1.5;
  static constexpr double kLeastMatch = 0.3;

  size_t ByCache(const TraceRequest& request) const {
    size_t best = 0, smallest = 0, matched = 0;
    for (size_t i = 0; i < beliefs_.size(); ++i) {
      const size_t num = beliefs_[i].NumMatched(request.blocks);
      if (num > matched) {
        best = i;
        matched = num;
      }
      if (beliefs_[i].size() < beliefs_[smallest].size()) smallest = i;
    }
    const double share = static_cast<double>(matched) /
                         static_cast<double>(std::max<size_t>(request.blocks.size(), 1));
    return share >= kLeastMatch ? best : smallest;
  }
  std::vector<Belief> beliefs_;
};

}  // namespace

const std::vector<std::string>& RouterNames() {
  static const auto* const names =
      new std::vector<std::string>{"round_robin", "least_loaded", "prefix_key", "cache_aware"};
  return *names;
}

std::unique_ptr<Router> MakeRouter(std::string_view name, size_t num_replicas, int32_t key_blocks,
                                   int64_t cache_blocks) {
  if (name == "round_robin") return std::make_unique<RoundRobin>();
  if (name == "least_loaded") return std::make_unique<LeastLoadedRouter>();
  if (name == "prefix_key") return std::make_unique<PrefixKey>(key_blocks);
  if (name == "cache_aware") return std::make_unique<CacheAware>(num_replicas, cache_blocks);
  return nullptr;
}

}  // namespace quire::tools
