#include "server/http/metrics_exporter.h"

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "prometheus/metric_family.h"
#include "prometheus/text_serializer.h"

#include "base/logging.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "server/http/process_memory.h"

namespace quire::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

// Returns `name`, which a client may choose, with controls and backslashes escaped as in C: two
// names stay two, and a terminal shows them all.
std::string LabelText(std::string_view name) {
  std::string out;
  for (size_t i = 0; i < name.size();) {
    const base::Utf8Char c = base::DecodeUtf8(name, i);
    const bool is_control = c.code_point < 0x20 || (c.code_point >= 0x7f && c.code_point < 0xa0);
    const absl::string_view bytes = base::ToAbsl(name.substr(i, c.length));
    absl::StrAppend(&out, is_control || c.code_point == U'\\' ? absl::CHexEscape(bytes) : bytes);
    i += c.length;
  }
  return out;
}

// A metric family with one or more series.
class Family {
 public:
  Family(std::string name, MetricType type, std::string help) {
    family_.name = std::move(name);
    family_.type = type;
    family_.help = std::move(help);
  }

  template <typename Number>
  Family& Add(Number value, Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    if (family_.type == MetricType::Counter) {
      metric.counter.value = static_cast<double>(value);
    } else {
      metric.gauge.value = static_cast<double>(value);
    }
    family_.metric.push_back(std::move(metric));
    return *this;
  }

  Family& AddHistogram(const engine::HistogramSnapshot& snapshot) {
    ClientMetric metric;
    uint64_t cumulative = 0;
    for (size_t i = 0; i < snapshot.counts.size(); ++i) {
      cumulative += snapshot.counts[i];
      const double bound =
          i < snapshot.bounds.size() ? snapshot.bounds[i] : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({.cumulative_count = cumulative, .upper_bound = bound});
    }
    metric.histogram.sample_count = cumulative;
    metric.histogram.sample_sum = snapshot.sum;
    family_.metric.push_back(std::move(metric));
    return *this;
  }

  bool empty() const { return family_.metric.empty(); }
  MetricFamily Take() { return std::move(family_); }

 private:
  MetricFamily family_;
};

// All are zero on the CPU.
void AddDevice(const engine::DeviceCounts& counts, std::vector<MetricFamily>& families) {
  using engine::DeviceCount;
  const auto value = [&](DeviceCount count) { return counts[static_cast<size_t>(count)]; };
  const auto counter = [&](const char* name, const char* help, DeviceCount count) {
    families.push_back(Family(name, MetricType::Counter, help).Add(value(count)).Take());
  };
  families.push_back(
      Family("quire_device_attention_total", MetricType::Counter,
             "Attention of one layer in one step on a GPU, by kind of kernel.")
          .Add(value(DeviceCount::kTensorCoreAttention), {{"kernel", "tensor_cores"}})
          .Add(value(DeviceCount::kPlainAttention), {{"kernel", "plain"}})
          .Take());
  counter("quire_device_recordings_total", "CUDA graphs recorded.", DeviceCount::kRecordings);
  counter("quire_device_replays_total", "CUDA graphs replayed.", DeviceCount::kReplays);
  counter("quire_device_uploads_total", "Copies from the host to the GPU.", DeviceCount::kUploads);
  counter("quire_device_uploaded_bytes_total", "Bytes copied from the host to the GPU.",
          DeviceCount::kUploadedBytes);
  counter("quire_device_allocations_total",
          "Allocations of the GPU's memory and of pinned memory since the server was ready.",
          DeviceCount::kAllocations);
  counter("quire_device_synchronizations_total",
          "Times that the host waited for all work of the GPU since the server was ready.",
          DeviceCount::kSynchronizations);
  counter("quire_device_sampled_rows_total", "Rows of logits that the GPU sampled.",
          DeviceCount::kSampledRows);
}

void AddEngine(const engine::Stats& stats, std::vector<MetricFamily>& families) {
  const auto gauge = [&](const char* name, const char* help, int64_t value) {
    families.push_back(Family(name, MetricType::Gauge, help).Add(value).Take());
  };
  const auto counter = [&](const char* name, const char* help, int64_t value) {
    families.push_back(Family(name, MetricType::Counter, help).Add(value).Take());
  };
  gauge("quire_requests_waiting", "Requests not run yet, and preempted sequences.",
        stats.num_waiting);
  gauge("quire_sequences_running", "Sequences in the running batch.", stats.num_running);
  families.push_back(Family("quire_kv_blocks", MetricType::Gauge, "KV blocks by state.")
                         .Add(stats.blocks_free, {{"state", "free"}})
                         .Add(stats.blocks_cached, {{"state", "cached"}})
                         .Add(stats.blocks_held, {{"state", "held"}})
                         .Take());
  gauge("quire_pinned_blocks",
        "KV blocks that named prefixes and pinned sessions keep; they are held.",
        stats.blocks_pinned);
  const auto prefixes = [&](engine::PrefixState state) {
    return stats.prefixes[static_cast<size_t>(state)];
  };
  families.push_back(Family("quire_prefixes", MetricType::Gauge, "Named prefixes by state.")
                         .Add(prefixes(engine::PrefixState::kComputing), {{"state", "computing"}})
                         .Add(prefixes(engine::PrefixState::kReady), {{"state", "ready"}})
                         .Add(prefixes(engine::PrefixState::kFailed), {{"state", "failed"}})
                         .Add(prefixes(engine::PrefixState::kCold), {{"state", "cold"}})
                         .Take());
  counter("quire_prefix_hits_total", "Requests that began with blocks of a named prefix.",
          stats.prefix_hits);
  counter("quire_prefix_saved_tokens_total",
          "Tokens of named prefixes that requests did not compute.", stats.prefix_saved_tokens);
  gauge("quire_sessions", "Open sessions.", stats.sessions.num_open);
  const auto turns = [&](engine::TurnResult result) {
    return stats.sessions.turns[static_cast<size_t>(result)];
  };
  families.push_back(
      Family("quire_session_turns_total", MetricType::Counter, "Turns of sessions that ended.")
          .Add(turns(engine::TurnResult::kOk), {{"result", "ok"}})
          .Add(turns(engine::TurnResult::kCancelled), {{"result", "cancelled"}})
          .Add(turns(engine::TurnResult::kFailed), {{"result", "failed"}})
          .Take());
  families.push_back(Family("quire_prompt_tokens_total", MetricType::Counter,
                            "Prompt tokens: computed, or found in the prefix cache.")
                         .Add(stats.prompt_tokens_computed, {{"source", "computed"}})
                         .Add(stats.prompt_tokens_cached, {{"source", "cached"}})
                         .Take());
  counter("quire_generated_tokens_total", "Tokens generated.", stats.generated_tokens);
  counter("quire_scored_tokens_total", "Continuation tokens scored.", stats.scored_tokens);
  counter("quire_recomputed_tokens_total", "Tokens computed again after preemptions.",
          stats.recomputed_tokens);
  counter("quire_drafted_tokens_total", "Tokens guessed, and computed to check them.",
          stats.drafted_tokens);
  counter("quire_accepted_tokens_total", "Guessed tokens that were right.", stats.accepted_tokens);
  counter("quire_drafts_expected_tokens_total", "Tokens that guesses were expected to yield.",
          stats.drafts_expected);
  counter("quire_drafts_price_tokens_total",
          "Tokens that the time spent on guesses would have yielded without them.",
          stats.drafts_price);
  counter("quire_preemptions_total", "Times that a sequence was preempted and lost its blocks.",
          stats.preemptions);
  counter("quire_kv_block_copies_total", "KV blocks copied before a write.", stats.block_copies);
  gauge("quire_kv_disk_bytes", "Bytes of the KV cache on disk.", stats.disk.bytes);
  counter("quire_kv_disk_hits_total", "Blocks that came from disk.", stats.disk.hits);
  counter("quire_kv_disk_misses_total",
          "Blocks of prompts that were not on disk, or could not be used.", stats.disk.misses);
  counter("quire_kv_disk_errors_total", "Errors of the disk, and damaged blocks on it.",
          stats.disk.errors);
  counter("quire_kv_disk_dropped_total", "Blocks that were not written to disk.",
          stats.disk.dropped);
  counter("quire_beam_copies_total", "Those of the copies that beams made of shared blocks.",
          stats.beam_copies);
  counter("quire_steps_total", "Steps of the engine.", stats.steps);
  counter("quire_steps_failed_total", "Steps that failed; the requests in them failed too.",
          stats.steps_failed);
  counter("quire_shared_prefixes_total", "Prefixes that several sequences of a step read together.",
          stats.shared_prefixes);
  counter(
      "quire_saved_keys_total",
      "Keys of shared prefixes, once for each sequence of a step but the first that shares them.",
      stats.saved_keys);
  counter("quire_requests_rejected_total", "Requests refused before they were admitted.",
          stats.requests_rejected);
  counter("quire_deadlines_refused_total",
          "Requests refused because they would have missed their deadlines.",
          stats.deadlines_refused);
  const auto followers = [&](engine::FollowEnd end) {
    return stats.followers[static_cast<size_t>(end)];
  };
  families.push_back(Family("quire_followers_total", MetricType::Counter,
                            "Sequences that waited for tokens that another one was computing.")
                         .Add(followers(engine::FollowEnd::kServed), {{"end", "served"}})
                         .Add(followers(engine::FollowEnd::kReturned), {{"end", "returned"}})
                         .Add(followers(engine::FollowEnd::kEnded), {{"end", "ended"}})
                         .Take());
  const auto resumes = [&](engine::ResumeResult result) {
    return stats.resumes[static_cast<size_t>(result)];
  };
  families.push_back(
      Family("quire_resumes_total", MetricType::Counter, "Requests to resume a broken stream.")
          .Add(resumes(engine::ResumeResult::kResumed), {{"result", "resumed"}})
          .Add(resumes(engine::ResumeResult::kInvalid), {{"result", "invalid"}})
          .Add(resumes(engine::ResumeResult::kMismatch), {{"result", "mismatch"}})
          .Take());
  const auto finished = [&](engine::FinishReason reason) {
    return stats.finished_by_reason[static_cast<size_t>(reason)];
  };
  families.push_back(
      Family("quire_sequences_finished_total", MetricType::Counter, "Sequences that ended.")
          .Add(finished(engine::FinishReason::kStop), {{"reason", "stop"}})
          .Add(finished(engine::FinishReason::kLength), {{"reason", "length"}})
          .Add(finished(engine::FinishReason::kAbort), {{"reason", "abort"}})
          .Take());
  families.push_back(Family("quire_time_to_first_token_seconds", MetricType::Histogram,
                            "Time from a request's arrival to its first token.")
                         .AddHistogram(stats.ttft)
                         .Take());
  families.push_back(Family("quire_time_per_output_token_seconds", MetricType::Histogram,
                            "Mean time between the tokens of a request after its first.")
                         .AddHistogram(stats.tpot)
                         .Take());
  gauge("quire_draining", "1 while new requests are refused, else 0.", stats.draining ? 1 : 0);
}

// One series for each lasting tenant, and one for all others together, so that the number of series
// is bounded.
void AddTenants(const engine::TenantUsages& usages, std::vector<MetricFamily>& families) {
  if (usages.tenants.empty()) return;
  engine::TenantCounts others = usages.forgotten;
  for (size_t i = usages.num_lasting; i < usages.tenants.size(); ++i) {
    others += usages.tenants[i].counts;
  }
  const auto add = [&](const char* name, const char* help, uint64_t engine::TenantCounts::*count) {
    Family family(name, MetricType::Counter, help);
    for (size_t i = 0; i < usages.num_lasting; ++i) {
      const engine::TenantUsage& usage = usages.tenants[i];
      family.Add(usage.counts.*count, {{"tenant", LabelText(usage.name)}, {"kind", "one"}});
    }
    family.Add(others.*count, {{"tenant", ""}, {"kind", "others"}});
    families.push_back(family.Take());
  };
  add("quire_tenant_requests_total", "Requests accepted, by tenant.",
      &engine::TenantCounts::requests);
  add("quire_tenant_refused_total", "Requests refused because a tenant's rate limit was used up.",
      &engine::TenantCounts::refused);
  add("quire_tenant_served_tokens_total",
      "Prompt tokens computed and tokens generated, of requests that ended, by tenant.",
      &engine::TenantCounts::served_tokens);
}

void AddChargedBlocks(const engine::TenantUsages& usages, std::vector<MetricFamily>& families) {
  if (usages.tenants.empty()) return;
  Family family("quire_tenant_charged_blocks", MetricType::Gauge,
                "KV blocks held, divided by the tenants that hold them, by tenant.");
  for (size_t i = 0; i < usages.num_lasting; ++i) {
    const engine::TenantUsage& usage = usages.tenants[i];
    family.Add(usage.charged_blocks, {{"tenant", LabelText(usage.name)}, {"kind", "one"}});
  }
  family.Add(usages.others_charged_blocks, {{"tenant", ""}, {"kind", "others"}});
  families.push_back(family.Take());
}

MetricFamily Rpcs(const RpcCounters& counters) {
  Family family("quire_rpcs_total", MetricType::Counter, "RPCs that ended, by status code.");
  for (size_t rpc = 0; rpc < kRpcs.size(); ++rpc) {
    for (size_t code = 0; code < kStatusCodeNames.size(); ++code) {
      const uint64_t count = counters.Get(rpc, code);
      if (count == 0 && code != 0) continue;  // a series for each code that occurred, and for OK
      family.Add(count, {{"rpc", std::string(kRpcs[rpc].method)},
                         {"code", std::string(kStatusCodeNames[code])}});
    }
  }
  return family.Take();
}

// Makes one series for each reason.
template <typename Counts, size_t n>
MetricFamily ByReason(const char* name, const char* help, const Counts& counts,
                      const std::array<std::string_view, n>& reasons) {
  Family family(name, MetricType::Counter, help);
  for (size_t i = 0; i < n; ++i) family.Add(counts.Get(i), {{"reason", std::string(reasons[i])}});
  return family.Take();
}

void AddDoor(const door::DoorCounters& door, std::vector<MetricFamily>& families) {
  families.push_back(Family("quire_connections", MetricType::Gauge, "Open connections.")
                         .Add(door.open.load(std::memory_order_relaxed))
                         .Take());
  families.push_back(
      Family("quire_connections_accepted_total", MetricType::Counter, "Connections accepted.")
          .Add(door.accepted.load(std::memory_order_relaxed))
          .Take());
  families.push_back(ByReason("quire_connections_refused_total",
                              "Connections closed before HTTP/2 began, by reason.", door.turned,
                              door::kTurnedNames));
  families.push_back(ByReason("quire_connections_cut_total",
                              "Connections ended with GOAWAY, by reason.", door.cut,
                              door::kCutNames));
  families.push_back(ByReason("quire_streams_refused_total",
                              "Calls refused before gRPC had their message, by reason.",
                              door.refused, door::kRefusedNames));
  families.push_back(Family("quire_open_calls", MetricType::Gauge,
                            "Open calls of all services, those without a whole message included.")
                         .Add(door.streams.load(std::memory_order_relaxed))
                         .Take());
  families.push_back(Family("quire_unfinished_message_bytes", MetricType::Gauge,
                            "Bytes of request messages that have not arrived whole.")
                         .Add(door.unfinished_bytes.load(std::memory_order_relaxed))
                         .Take());
}

// Values that the GPU does not tell have no series.
void AddGpu(const GpuReadings& gpu, std::vector<MetricFamily>& families) {
  const auto add = [&]<typename... Series>(MetricType type, const char* name, const char* help,
                                           const Series&... series) {
    Family family(name, type, help);
    const auto add_one = [&](const auto& value, Labels labels) {
      if (value) family.Add(*value, std::move(labels));
    };
    (add_one(series.first, series.second), ...);
    if (!family.empty()) families.push_back(family.Take());
  };
  using Whole = std::pair<std::optional<int64_t>, Labels>;
  using Real = std::pair<std::optional<double>, Labels>;
  add(MetricType::Gauge, "quire_gpu_memory_bytes", "The GPU's memory, of all processes.",
      Whole(gpu.memory_used_bytes, {{"kind", "used"}}),
      Whole(gpu.memory_total_bytes, {{"kind", "total"}}));
  add(MetricType::Gauge, "quire_gpu_busy_ratio",
      "Part of the last second or less in which the GPU computed, or accessed its memory.",
      Real(gpu.busy_ratio, {{"unit", "compute"}}),
      Real(gpu.memory_busy_ratio, {{"unit", "memory"}}));
  add(MetricType::Gauge, "quire_gpu_clock_hertz", "Present clocks of the GPU.",
      Whole(gpu.sm_clock_hz, {{"clock", "sm"}}), Whole(gpu.memory_clock_hz, {{"clock", "memory"}}));
  add(MetricType::Gauge, "quire_gpu_temperature_celsius", "Temperature of the GPU.",
      Whole(gpu.temperature_celsius, {}));
  add(MetricType::Gauge, "quire_gpu_power_watts", "Power that the GPU draws.",
      Real(gpu.power_watts, {}));
  add(MetricType::Counter, "quire_gpu_ecc_errors_total",
      "ECC errors of the GPU's memory since its driver started.",
      Whole(gpu.corrected_ecc_errors, {{"kind", "corrected"}}),
      Whole(gpu.uncorrected_ecc_errors, {{"kind", "uncorrected"}}));
  add(MetricType::Counter, "quire_gpu_xid_errors_total",
      "Errors that the GPU's driver reported since the server started.", Whole(gpu.xid_errors, {}));
  add(MetricType::Gauge, "quire_gpu_last_xid",
      "Number of the last error that the driver reported; see NVIDIA's list of Xid errors.",
      Whole(gpu.last_xid, {}));
  add(MetricType::Gauge, "quire_gpu_readings_age_seconds",
      "Time since the values of the GPU were read; it grows when the driver hangs.",
      Real(absl::ToDoubleSeconds(gpu.age), {}));
}

}  // namespace

MetricsExporter::MetricsExporter(const engine::Engine& engine, const RpcCounters& counters,
                                 const OpenCalls& open_calls, const door::DoorCounters& door,
                                 absl::Time certificate_expiry, std::optional<GpuReadings> gpu)
    : engine_(engine),
      counters_(counters),
      open_calls_(open_calls),
      door_(door),
      certificate_expiry_(certificate_expiry),
      gpu_(gpu) {}

std::string MetricsExporter::Text() const {
  std::vector<MetricFamily> families;
  const engine::Stats stats = engine_.stats();
  AddEngine(stats, families);
  AddDevice(stats.device, families);
  const engine::TenantUsages tenants = engine_.tenant_usages();
  AddTenants(tenants, families);
  AddChargedBlocks(tenants, families);
  families.push_back(Rpcs(counters_));
  families.push_back(Family("quire_generate_calls_open", MetricType::Gauge,
                            "Open calls of Generate, GenerateStream and Score.")
                         .Add(open_calls_.Get())
                         .Take());
  AddDoor(door_, families);
  if (certificate_expiry_ != absl::InfiniteFuture()) {
    families.push_back(Family("quire_tls_certificate_expiry_seconds", MetricType::Gauge,
                              "Unix time at which the server's certificate expires, in seconds.")
                           .Add(absl::ToUnixSeconds(certificate_expiry_))
                           .Take());
  }
  if (gpu_) AddGpu(*gpu_, families);
  const engine::ServerInfo& server = engine_.server_info();
  families.push_back(
      Family("quire_build_info", MetricType::Gauge, "Always 1; its labels describe the server.")
          .Add(1, {{"version", server.version},
                   {"backend", server.backend},
                   {"isa_path", server.isa_path},
                   {"model", engine_.model_info().name}})
          .Take());
  families.push_back(Family("quire_log_lines_dropped_total", MetricType::Counter,
                            "Log lines dropped because the reader of stderr was too slow.")
                         .Add(base::NumLogLinesDropped())
                         .Take());
  families.push_back(Family("process_resident_memory_bytes", MetricType::Gauge,
                            "Memory of the process in RAM, in bytes.")
                         .Add(ResidentMemoryBytes())
                         .Take());
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace quire::server
