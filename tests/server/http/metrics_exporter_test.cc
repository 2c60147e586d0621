// Tests the text of /metrics.

#include "server/http/metrics_exporter.h"

#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/clock.h"
#include "base/logging.h"
#include "server/http/admin_server.h"
#include "tests/server/fake_engine.h"

namespace quire::server {
namespace {

using quire::testing::FakeEngine;
using ::testing::Contains;

struct Exposition {
  std::map<std::string, std::string> types;  // by family
  std::map<std::string, std::string> helps;
  std::map<std::string, double> samples;  // by name with labels
};

// Parses the text format 0.0.4 of Prometheus, strictly enough for the text that we write.
Exposition ParseExposition(const std::string& text) {
  Exposition out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, kind, name, rest;
    if (absl::StartsWith(line, "# ")) {
      words >> hash >> kind >> name;
      std::getline(words >> std::ws, rest);
      (kind == "TYPE" ? out.types : out.helps)[name] = rest;
      continue;
    }
    const size_t space = line.rfind(' ');
    EXPECT_NE(space, std::string::npos) << line;
    char* end = nullptr;
    const double value = std::strtod(line.c_str() + space + 1, &end);
    EXPECT_EQ(*end, '\0') << line;
    EXPECT_TRUE(out.samples.emplace(line.substr(0, space), value).second) << "twice: " << line;
  }
  return out;
}

TEST(MetricsExporterTest, ShowsWhatTheGpuTells) {
  const FakeEngine engine;
  const RpcCounters counters;
  const OpenCalls open_calls;
  const door::DoorCounters door;
  const auto text = [&](std::optional<GpuReadings> gpu) {
    return MetricsExporter(engine, counters, open_calls, door, absl::InfiniteFuture(), gpu).Text();
  };
  EXPECT_FALSE(absl::StrContains(text(std::nullopt), "quire_gpu"));
  const Exposition shown = ParseExposition(text(GpuReadings{.memory_used_bytes = 60,
                                                            .memory_total_bytes = 80,
                                                            .busy_ratio = 0.5,
                                                            .sm_clock_hz = 1'755'000'000,
                                                            .uncorrected_ecc_errors = 2,
                                                            .xid_errors = 3,
                                                            .last_xid = 79,
                                                            .age = absl::Milliseconds(1500)}));
  const std::map<std::string, double> want = {
      {"quire_gpu_memory_bytes{kind=\"used\"}", 60},
      {"quire_gpu_memory_bytes{kind=\"total\"}", 80},
      {"quire_gpu_busy_ratio{unit=\"compute\"}", 0.5},
      {"quire_gpu_clock_hertz{clock=\"sm\"}", 1'755'000'000},
      {"quire_gpu_ecc_errors_total{kind=\"uncorrected\"}", 2},
      {"quire_gpu_xid_errors_total", 3},
      {"quire_gpu_last_xid", 79},
      {"quire_gpu_readings_age_seconds", 1.5}};
  std::map<std::string, double> got;
  for (const auto& [name, value] : shown.samples) {
    if (absl::StartsWith(name, "quire_gpu")) got[name] = value;
  }
  EXPECT_EQ(got, want);
}

TEST(MetricsExporterTest, CountsTheLastingTenantsOneByOneAndAllOthersTogether) {
  FakeEngine engine;
  const RpcCounters counters;
  const OpenCalls open_calls;
  const door::DoorCounters door;
  const auto text = [&] { return MetricsExporter(engine, counters, open_calls, door).Text(); };
  EXPECT_FALSE(absl::StrContains(text(), "quire_tenant"));
  const auto tenant = [](const char* name, engine::TenantCounts counts) {
    engine::TenantUsage usage;
    usage.name = name;
    usage.counts = counts;
    return usage;
  };
  engine.SetTenantUsages({.tenants = {tenant("", {.requests = 1, .refused = 2, .served_tokens = 3}),
                                      tenant("a\"b\n\x1b[2J\x7f\u009b\\", {.requests = 4}),
                                      tenant("late", {.served_tokens = 10})},
                          .num_lasting = 2,
                          .forgotten = {.requests = 20, .served_tokens = 30},
                          .others_charged_blocks = 2.5});
  std::map<std::string, double> got;
  for (const auto& [name, value] : ParseExposition(text()).samples) {
    if (absl::StartsWith(name, "quire_tenant") && value != 0) got[name] = value;
  }
  const std::map<std::string, double> want = {
      {"quire_tenant_charged_blocks{tenant=\"\",kind=\"others\"}", 2.5},
      {"quire_tenant_requests_total{tenant=\"\",kind=\"one\"}", 1},
      {"quire_tenant_requests_total{tenant=\"a\\\"b\\\\n\\\\x1b[2J\\\\x7f\\\\xc2\\\\x9b\\\\\\\\\","
       "kind=\"one\"}",
       4},
      {"quire_tenant_requests_total{tenant=\"\",kind=\"others\"}", 20},
      {"quire_tenant_refused_total{tenant=\"\",kind=\"one\"}", 2},
      {"quire_tenant_served_tokens_total{tenant=\"\",kind=\"one\"}", 3},
      {"quire_tenant_served_tokens_total{tenant=\"\",kind=\"others\"}", 40}};
  EXPECT_EQ(got, want);
}

TEST(MetricsExporterTest, SaysWhenTheCertificateExpires) {
  const FakeEngine engine;
  const RpcCounters counters;
  const OpenCalls open_calls;
  const door::DoorCounters door;
  const std::string name = "quire_tls_certificate_expiry_seconds";
  EXPECT_FALSE(ParseExposition(MetricsExporter(engine, counters, open_calls, door).Text())
                   .samples.contains(name));
  const MetricsExporter exporter(engine, counters, open_calls, door,
                                 absl::FromUnixSeconds(1800000000));
  EXPECT_EQ(ParseExposition(exporter.Text()).samples.at(name), 1800000000.0);
}

TEST(MetricsExporterTest, SaysWhatTheEngineCounts) {
  const FakeEngine engine;
  RpcCounters counters;
  OpenCalls open_calls;
  door::DoorCounters door;
  counters.Count(Rpc::kGenerate, absl::StatusCode::kOk);
  counters.Count(Rpc::kGenerate, absl::StatusCode::kResourceExhausted);
  open_calls.Begin();
  Exposition out = ParseExposition(MetricsExporter(engine, counters, open_calls, door).Text());
  const std::map<std::string, double> expected = {
      {"quire_requests_waiting", 3},
      {"quire_sequences_running", 0},
      {"quire_kv_blocks{state=\"free\"}", 5},
      {"quire_kv_blocks{state=\"cached\"}", 3},
      {"quire_kv_blocks{state=\"held\"}", 2},
      {"quire_pinned_blocks", 1},
      {"quire_prefixes{state=\"computing\"}", 1},
      {"quire_prefixes{state=\"ready\"}", 2},
      {"quire_prefixes{state=\"failed\"}", 3},
      {"quire_prefixes{state=\"cold\"}", 31},
      {"quire_prefix_hits_total", 4},
      {"quire_prefix_saved_tokens_total", 90},
      {"quire_prompt_tokens_total{source=\"computed\"}", 11},
      {"quire_prompt_tokens_total{source=\"cached\"}", 12},
      {"quire_generated_tokens_total", 0},
      {"quire_recomputed_tokens_total", 14},
      {"quire_scored_tokens_total", 13},
      {"quire_drafted_tokens_total", 25},
      {"quire_accepted_tokens_total", 24},
      {"quire_drafts_expected_tokens_total", 27},
      {"quire_drafts_price_tokens_total", 9},
      {"quire_kv_block_copies_total", 15},
      {"quire_kv_disk_bytes", 35},
      {"quire_kv_disk_hits_total", 36},
      {"quire_kv_disk_misses_total", 37},
      {"quire_kv_disk_errors_total", 38},
      {"quire_kv_disk_dropped_total", 39},
      {"quire_beam_copies_total", 14},
      {"quire_preemptions_total", 16},
      {"quire_steps_total", 17},
      {"quire_steps_failed_total", 19},
      {"quire_shared_prefixes_total", 26},
      {"quire_saved_keys_total", 27},
      {"quire_device_attention_total{kernel=\"tensor_cores\"}", 41},
      {"quire_device_attention_total{kernel=\"plain\"}", 42},
      {"quire_device_recordings_total", 43},
      {"quire_device_replays_total", 44},
      {"quire_device_uploads_total", 45},
      {"quire_device_uploaded_bytes_total", 46},
      {"quire_device_allocations_total", 47},
      {"quire_device_synchronizations_total", 48},
      {"quire_device_sampled_rows_total", 49},
      {"quire_requests_rejected_total", 18},
      {"quire_deadlines_refused_total", 31},
      {"quire_followers_total{end=\"served\"}", 32},
      {"quire_followers_total{end=\"returned\"}", 33},
      {"quire_followers_total{end=\"ended\"}", 34},
      {"quire_resumes_total{result=\"resumed\"}", 28},
      {"quire_resumes_total{result=\"invalid\"}", 29},
      {"quire_resumes_total{result=\"mismatch\"}", 30},
      {"quire_sequences_finished_total{reason=\"stop\"}", 21},
      {"quire_sequences_finished_total{reason=\"length\"}", 22},
      {"quire_sequences_finished_total{reason=\"abort\"}", 23},
      {"quire_time_to_first_token_seconds_bucket{le=\"0.1\"}", 4},
      {"quire_time_to_first_token_seconds_bucket{le=\"1\"}", 9},
      {"quire_time_to_first_token_seconds_bucket{le=\"+Inf\"}", 15},
      {"quire_time_to_first_token_seconds_count", 15},
      {"quire_time_to_first_token_seconds_sum", 12.5},
      {"quire_time_per_output_token_seconds_count", 1},
      {"quire_rpcs_total{rpc=\"Generate\",code=\"OK\"}", 1},
      {"quire_rpcs_total{rpc=\"Generate\",code=\"RESOURCE_EXHAUSTED\"}", 1},
      {"quire_rpcs_total{rpc=\"Drain\",code=\"OK\"}", 0},
      {"quire_generate_calls_open", 1},
      {"quire_draining", 0},
      {"quire_build_info{version=\"1.2.3\",backend=\"cpu\",isa_path=\"portable\",model=\"fake-"
       "model\"}",
       1},
  };
  for (const auto& [name, value] : expected) {
    EXPECT_THAT(out.samples, Contains(::testing::Pair(name, value)));
  }
  EXPECT_EQ(out.samples.at("quire_log_lines_dropped_total"), base::NumLogLinesDropped());
  EXPECT_GT(out.samples.at("process_resident_memory_bytes"), 1e6);
  for (const auto& [name, type] : out.types) {
    EXPECT_NE(out.helps[name], "") << name;
    EXPECT_EQ(type == "counter", absl::EndsWith(name, "_total")) << name;
  }
  open_calls.End();
}

TEST(MetricsExporterTest, EveryCodeOfEveryRpcIsABoundedSetOfSeries) {
  const FakeEngine engine;
  RpcCounters counters;
  OpenCalls open_calls;
  door::DoorCounters door;
  for (size_t rpc = 0; rpc < kRpcs.size(); ++rpc) {
    for (size_t code = 0; code < kStatusCodeNames.size(); ++code) {
      counters.Count(static_cast<Rpc>(rpc), static_cast<absl::StatusCode>(code));
    }
  }
  Exposition out = ParseExposition(MetricsExporter(engine, counters, open_calls, door).Text());
  size_t series = 0;
  for (const auto& [name, value] : out.samples)
    series += absl::StartsWith(name, "quire_rpcs_total");
  EXPECT_EQ(series, kRpcs.size() * kStatusCodeNames.size());
}

TEST(OpenCallsTest, WaitsUntilNoneIsLeft) {
  OpenCalls calls;
  EXPECT_TRUE(calls.WaitUntilNone(absl::InfinitePast()));
  calls.Begin();
  EXPECT_FALSE(calls.WaitUntilNone(absl::InfinitePast()));
  std::thread ender([&] { calls.End(); });
  EXPECT_TRUE(calls.WaitUntilNone(base::SteadyNow() + absl::Seconds(10)));
  ender.join();
}

}  // namespace
}  // namespace quire::server
