#pragma once

// Serves a trace with replicas behind a router, on a virtual clock.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "tools/sim/replica.h"
#include "tools/sim/trace.h"

namespace quire::tools {

struct FleetConfig {
  ReplicaConfig replica;
  int32_t num_replicas = 1;
  std::string router = "least_loaded";
  int32_t key_blocks = 4;  // of prefix_key
  // The times within which a request counts for goodput, in seconds.
  double slo_ttft = 2.0;
  double slo_tpot = 0.1;
};

// Seconds.
struct Percentiles {
  double p50 = 0.0;
  double p95 = 0.0;
  double p99 = 0.0;
};
Percentiles PercentilesOf(std::vector<double> values);
// (sum x)^2 / (n sum x^2): 1 when all are equal, 1 / n when one has all. 1 for no values.
double JainIndex(const std::vector<double>& values);

// What one tenant saw.
struct TenantResult {
  int32_t tenant = 0;
  int64_t num_served = 0;
  Percentiles ttft;
  Percentiles ttft_steps;  // steps that end up to the first token
  double longest_gap = 0.0;
  int64_t longest_gap_steps = 0;
};

struct FleetResult {
  int64_t num_served = 0;
  int64_t num_refused = 0;  // did not fit an empty cache
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  int64_t recomputed_tokens = 0;  // computed again after preemptions
  int64_t computed_tokens = 0;    // of prompts and answers, recomputed ones included
  int64_t num_preemptions = 0;
  int64_t num_steps = 0;
  double seconds = 0.0;       // to the end of the last request
  double longest_step = 0.0;  // seconds
  Percentiles ttft;
  Percentiles tpot;                   // of requests with at least two tokens
  double goodput = 0.0;               // requests a second within both times
  std::vector<TenantResult> tenants;  // by number
  double jain = 1.0;     // over tenants, of tokens of answers for each second from arrival to end
  double busiest = 1.0;  // the busiest replica's time in steps / the mean
  double scheduler_us_per_step = 0.0;  // real time
  int64_t router_blocks = 0;
  double real_seconds = 0.0;

  double hit_rate() const { return Share(cached_tokens, prompt_tokens); }
  double recomputed_share() const { return Share(recomputed_tokens, computed_tokens); }
  static double Share(int64_t part, int64_t whole) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
  }
};

// `progress` is called now and then with the number of requests that have arrived. A router that is
// not known is InvalidArgument.
absl::StatusOr<FleetResult> RunFleet(Trace& trace, const FleetConfig& config,
                                     const std::function<void(int64_t)>& progress);

}  // namespace quire::tools
