#pragma once

// The limits on one tenant's use of what all tenants share: the queue, the places of running
// sequences, the blocks of the KV cache, the steps, and the rates of requests and tokens.

#include <algorithm>
#include <cstdint>

namespace quire::engine {

struct TenantLimits {
  int32_t max_waiting = 0;  // requests that have not run yet; 0: no limit but the queue's
  int32_t max_running = 0;  // running sequences, and samples of one request; 0: see leaves_places
  int32_t max_blocks = 0;   // of the KV cache that the tenant may be charged for; 0: no limit
  int32_t share = 1;        // weight among waiting tenants for steps; 1..100
  // The rates that a tenant may keep up. It may use up a minute's worth at once. 0: no limit.
  int32_t requests_per_minute = 0;
  int32_t tokens_per_minute = 0;  // prompt tokens computed, and tokens generated
  // If true, a request of the tenant is accepted only while the number of the tenant's waiting
  // requests is below `share` times the number of free places of the queue. So one tenant alone
  // leaves about 1 / (share + 1) of the queue free.
  bool leaves_room = false;
  // If true, the tenant leaves room to other tenants in what all of them share and none has a limit
  // of its own for: see SharedLimit.
  bool has_others = false;
  // If true, and max_running is 0, the tenant leaves about 1/8 of the places of running sequences
  // to other tenants. If both are unset, there is no limit.
  bool leaves_places = false;
};

// Returns how many more of what all tenants share a tenant may take that has `of_tenant`, while
// `free` are left, if it is to leave room to the others: in the end it has as many as are then free
// and the last that it took, times its share. So one tenant alone leaves about 1 / (share + 1) of
// all. Choudhury and Hahne's dynamic thresholds share the buffer of a switch by this rule (IEEE/ACM
// ToN 6(2), 1998).
constexpr int64_t MostMore(int64_t of_tenant, int64_t free, int32_t share) {
  return std::clamp<int64_t>((share * (free + 1) - of_tenant) / (share + 1), 0, free);
}

// Returns how many sequences the tenant may run at once, if all tenants together may run
// `max_num_seqs`.
constexpr int32_t MostRunning(const TenantLimits& limits, int32_t max_num_seqs) {
  if (limits.max_running > 0) return std::min(limits.max_running, max_num_seqs);
  if (!limits.leaves_places || max_num_seqs == 1) return max_num_seqs;
  return max_num_seqs - std::max(1, max_num_seqs / 8);
}

}  // namespace quire::engine
