#include "tools/sim/fleet.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "tools/progress.h"
#include "tools/sim/router.h"

namespace quire::tools {
namespace {

constexpr int64_t kRequestsPerProgress = 256;

// Adds up what requests report at their end.
class Tally {
 public:
  Tally(const FleetConfig& config, FleetResult& result) : config_(config), result_(result) {}

  void Add(const Served& served) {
    ++result_.num_served;
    result_.prompt_tokens += served.prompt_tokens;
    result_.cached_tokens += served.cached_tokens;
    result_.output_tokens += served.output_tokens;
    result_.seconds = std::max(result_.seconds, served.last_token);
    const double ttft = served.first_token - served.arrival;
    ttft_.push_back(ttft);
    bool good = ttft <= config_.slo_ttft;
    if (served.output_tokens >= 2) {
      const double tpot =
          (served.last_token - served.first_token) / static_cast<double>(served.output_tokens - 1);
      tpot_.push_back(tpot);
      good = good && tpot <= config_.slo_tpot;
    }
    num_good_ += good ? 1 : 0;
    Tenant& tenant = tenants_[served.tenant];
    tenant.tokens += static_cast<double>(served.output_tokens);
    tenant.seconds += served.last_token - served.arrival;
    tenant.ttft.push_back(ttft);
    tenant.ttft_steps.push_back(static_cast<double>(served.ttft_steps));
    TenantResult& seen = tenant.result;
    seen.longest_gap = std::max(seen.longest_gap, served.longest_gap);
    seen.longest_gap_steps = std::max(seen.longest_gap_steps, served.longest_gap_steps);
  }

  void Finish() {
    result_.ttft = PercentilesOf(std::move(ttft_));
    result_.tpot = PercentilesOf(std::move(tpot_));
    if (result_.seconds > 0.0) result_.goodput = static_cast<double>(num_good_) / result_.seconds;
    std::vector<double> rates;
    for (auto& [id, tenant] : tenants_) {
      if (tenant.seconds > 0.0) rates.push_back(tenant.tokens / tenant.seconds);
      tenant.result.tenant = id;
      tenant.result.num_served = std::ssize(tenant.ttft);
      tenant.result.ttft = PercentilesOf(std::move(tenant.ttft));
      tenant.result.ttft_steps = PercentilesOf(std::move(tenant.ttft_steps));
      result_.tenants.push_back(tenant.result);
    }
    result_.jain = JainIndex(rates);
  }

 private:
  struct Tenant {
    double tokens = 0.0;
    double seconds = 0.0;
    std::vector<double> ttft, ttft_steps;
    TenantResult result;
  };
  const FleetConfig& config_;
  FleetResult& result_;
  int64_t num_good_ = 0;
  std::vector<double> ttft_, tpot_;
  std::map<int32_t, Tenant> tenants_;
};

}  // namespace

Percentiles PercentilesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto at = [&](double share) {
    return values[static_cast<size_t>(std::ceil(share * static_cast<double>(values.size()))) - 1];
  };
  return {.p50 = at(0.50), .p95 = at(0.95), .p99 = at(0.99)};
}

double JainIndex(const std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  const double squares = std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
  return squares > 0.0 ? sum * sum / (static_cast<double>(values.size()) * squares) : 1.0;
}

absl::StatusOr<FleetResult> RunFleet(Trace& trace, const FleetConfig& config,
                                     const std::function<void(int64_t)>& progress) {
  FleetResult result;
  Tally tally(config, result);
  const std::unique_ptr<Router> router =
      MakeRouter(config.router, config.num_replicas, config.key_blocks,
                 std::max<int64_t>(1, config.replica.cache_tokens / trace.block_tokens()));
  if (router == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("--router: want one of ",
                                                   absl::StrJoin(RouterNames(), "|"), ", got \"",
                                                   config.router, "\""));
  }
  std::vector<std::unique_ptr<Replica>> replicas;
  for (int32_t i = 0; i < config.num_replicas; ++i) {
    replicas.push_back(std::make_unique<Replica>(
        config.replica, [&tally](const Served& served) { tally.Add(served); }));
  }
  const auto next_to_end = [&] {
    return std::ranges::min_element(replicas, {}, [](const auto& r) { return r->step_end(); });
  };

  const Progress real_time;
  std::vector<ReplicaLoad> loads(replicas.size());
  TraceRequest request;
  int64_t num_arrived = 0;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, trace.Next(&request));
    const double arrival = more ? request.arrival_seconds : std::numeric_limits<double>::infinity();
    for (auto it = next_to_end(); (*it)->step_end() < arrival; it = next_to_end()) {
      (*it)->EndStep();
    }
    if (!more) break;
    for (size_t i = 0; i < replicas.size(); ++i) {
      loads[i] = {.num_requests = replicas[i]->num_requests(),
                  .num_tokens = replicas[i]->num_tokens_left()};
    }
    if (++num_arrived % kRequestsPerProgress == 0) progress(num_arrived);
    if (replicas[0]->Fits(request)) {
      replicas[router->Choose(request, loads)]->Add(request, trace.block_tokens(), arrival);
    } else {
      ++result.num_refused;
    }
  }
  tally.Finish();

  double busy = 0.0, busiest = 0.0, scheduler_seconds = 0.0;
  for (const auto& replica : replicas) {
    const engine::SchedulerStats stats = replica->stats();
    result.num_steps += stats.num_steps;
    result.num_preemptions += stats.num_preemptions;
    result.recomputed_tokens += stats.recomputed_tokens;
    result.computed_tokens += stats.scheduled_tokens;
    result.longest_step = std::max(result.longest_step, replica->longest_step());
    busy += replica->busy_seconds();
    busiest = std::max(busiest, replica->busy_seconds());
    scheduler_seconds += replica->scheduler_seconds();
  }
  if (busy > 0.0) result.busiest = busiest * static_cast<double>(replicas.size()) / busy;
  if (result.num_steps > 0) {
    result.scheduler_us_per_step = scheduler_seconds * 1e6 / static_cast<double>(result.num_steps);
  }
  result.router_blocks = router->num_known_blocks();
  result.real_seconds = real_time.seconds();
  return result;
}

}  // namespace quire::tools
