#pragma once

// The hit rates that no policy of eviction can exceed on a trace.

#include <cstdint>
#include <span>

#include "tools/sim/trace.h"

namespace quire::tools {

struct HitCount {
  int64_t hits = 0;   // blocks
  int64_t total = 0;  // blocks
  double rate() const {
    return total > 0 ? static_cast<double>(hits) / static_cast<double>(total) : 0.0;
  }
};

// Hits of a cache that evicts nothing.
HitCount InfiniteHits(std::span<const TraceRequest> trace);

// Hits of Belady's MIN with bypass: when the cache is full, the block whose next use is farthest is
// evicted, or not cached. The blocks of a prompt are used in order, and no block is used without
// those before it. So a parent's next use is never later than its child's: the deepest of the
// farthest blocks is a leaf, and MIN obeys the rule of the tree by itself. O(n log capacity) time,
// memory for one number a block of the trace. `capacity`: in blocks, at least 1.
HitCount MinHits(std::span<const TraceRequest> trace, int64_t capacity);

}  // namespace quire::tools
