#pragma once

// Policies of eviction that other systems publish, and the engine's own, on the blocks of a trace.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/sim/trace.h"

namespace quire::tools {

// A cache of whole prompts: requests come one after another, each takes no time, and its answer is
// not cached. A block is cached only if all blocks before it are, so leaves of the tree are evicted
// first, and never a block of the request that is served.
class ReplayedCache {
 public:
  virtual ~ReplayedCache() = default;
  // Returns the number of leading blocks that were cached. Caches the others while there is room.
  virtual int64_t Serve(const TraceRequest& request) = 0;
};

// Names, in the order in which tables show them:
//   lru      least recently used
//   bonus    lru by requests, with a bonus for the work before a block: quire before reuse classes
//   gdsf     GreedyDual-Size-Frequency (Cherkasova, HPL-98-69R1) with equal sizes and costs; a
//            block's frequency outlives its eviction
//   s3fifo   S3-FIFO (Yang et al., SOSP 2023): queues of 10 % and 90 % and a ghost queue; a block
//            that is no leaf is passed over
//   recency, reuse   the engine's BlockManager with this EvictionPolicy
const std::vector<std::string>& CachePolicies();

// Returns null if `policy` is none of CachePolicies(). `capacity`: in blocks, at least 1.
std::unique_ptr<ReplayedCache> MakeCache(std::string_view policy, int32_t capacity,
                                         int32_t block_tokens);

}  // namespace quire::tools
