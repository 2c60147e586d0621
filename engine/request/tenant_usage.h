#pragma once

// The use that tenants have made of the server, and what their rate limits leave them.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/request/tenant_limits.h"

namespace quire::engine {

// Numbers since the server started.
struct TenantCounts {
  uint64_t requests = 0;       // accepted
  uint64_t refused = 0;        // refused because a rate limit was used up
  uint64_t served_tokens = 0;  // prompt tokens computed and tokens generated, of ended requests

  TenantCounts& operator+=(const TenantCounts& other) {
    requests += other.requests;
    refused += other.refused;
    served_tokens += other.served_tokens;
    return *this;
  }
};

struct TenantUsage {
  std::string name;
  TenantLimits limits;
  TenantCounts counts;
  int64_t num_requests = 0;   // accepted, and not ended
  double charged_blocks = 0;  // its part of the blocks that are held now; see TenantCharges
  // The rest that the rate limits leave now. Infinite where there is no limit; below zero after a
  // request took more tokens than were left.
  double requests_left = 0;
  double tokens_left = 0;
};

struct TenantUsages {
  std::vector<TenantUsage> tenants;
  size_t num_lasting = 0;            // this many come first, always the same ones in the same order
  TenantCounts forgotten;            // of tenants that are not in the list any more
  double others_charged_blocks = 0;  // of tenants that are not lasting, in the list or not
};

}  // namespace quire::engine
