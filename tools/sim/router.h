#pragma once

// The rules by which gateways choose a replica for a request.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tools/sim/trace.h"

namespace quire::tools {

struct ReplicaLoad {
  int64_t num_requests = 0;  // that wait or run
  int64_t num_tokens = 0;    // of prompts and answers of these requests
};

class Router {
 public:
  virtual ~Router() = default;
  // Returns the index of a replica. `loads` has at least one.
  virtual size_t Choose(const TraceRequest& request, std::span<const ReplicaLoad> loads) = 0;
  // The memory of the router, in blocks that it knows.
  virtual int64_t num_known_blocks() const { return 0; }
};

// Names:
//   round_robin    in turn
//   least_loaded   the fewest tokens; among equals in turn
//   prefix_key     a stable hash of the prompt's first `key_blocks` blocks (a key of fixed depth,
//                  as in Envoy's ring hash); with more than 1.25 times the mean load the next one
//                  of the ring (bounded loads, arXiv:1608.01350)
//   cache_aware    the rule that SGLang's and SMG's routers publish: when the loads differ by more
//                  than 64 requests and by 1.5 times, the least loaded one; else the one whose
//                  cache is believed to hold most of the prompt if that is at least 0.3 of it; else
//                  the one that is believed to hold least. Beliefs are an LRU set of blocks.
const std::vector<std::string>& RouterNames();
// Returns null if `name` is none of these. `cache_blocks`: blocks that fit one replica's cache.
std::unique_ptr<Router> MakeRouter(std::string_view name, size_t num_replicas, int32_t key_blocks,
                                   int64_t cache_blocks);

}  // namespace quire::tools
