#include "tools/sim/bounds.h"

#include <iterator>
#include <limits>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace quire::tools {

HitCount InfiniteHits(std::span<const TraceRequest> trace) {
  HitCount count;
  std::unordered_set<uint64_t> known;
  for (const TraceRequest& request : trace) {
    for (const uint64_t block : request.blocks) count.hits += known.insert(block).second ? 0 : 1;
    count.total += std::ssize(request.blocks);
  }
  return count;
}

HitCount MinHits(std::span<const TraceRequest> trace, int64_t capacity) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  HitCount count;
  for (const TraceRequest& request : trace) count.total += std::ssize(request.blocks);

  // next_use[i]: the index of the next use of the block that use i uses.
  std::vector<int64_t> next_use(count.total);
  std::unordered_map<uint64_t, int64_t> later;
  int64_t use = count.total;
  for (size_t r = trace.size(); r-- > 0;) {
    for (size_t i = trace[r].blocks.size(); i-- > 0;) {
      int64_t& next = later.try_emplace(trace[r].blocks[i], kNever).first->second;
      next_use[--use] = next;
      next = use;
    }
  }

  struct Cached {
    int64_t next = 0;
    int32_t depth = 0;
  };
  std::unordered_map<uint64_t, Cached> cached;
  std::set<std::tuple<int64_t, int32_t, uint64_t>> by_next;
  for (const TraceRequest& request : trace) {
    for (size_t i = 0; i < request.blocks.size(); ++i, ++use) {
      const uint64_t block = request.blocks[i];
      const auto depth = static_cast<int32_t>(i);
      if (const auto it = cached.find(block); it != cached.end()) {
        ++count.hits;
        by_next.erase({it->second.next, it->second.depth, block});
        cached.erase(it);
      } else if (std::ssize(cached) == capacity) {
        const auto last = std::prev(by_next.end());
        if (std::get<0>(*last) <= next_use[use]) continue;
        cached.erase(std::get<2>(*last));
        by_next.erase(last);
      }
      if (next_use[use] == kNever) continue;  // it would never hit
      cached[block] = {.next = next_use[use], .depth = depth};
      by_next.emplace(next_use[use], depth, block);
    }
  }
  return count;
}

}  // namespace quire::tools
