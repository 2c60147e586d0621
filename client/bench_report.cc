#include "client/bench_report.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace quire::client {
namespace {

double Percentile(const std::vector<double>& sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - std::floor(position)) * (sorted[above] - sorted[below]);
}

std::string FormatRow(const char* name, const Distribution& d) {
  if (d.count == 0) return absl::StrFormat("%-14s %9s\n", name, "none");
  return absl::StrFormat("%-14s %9.2f %9.2f %9.2f %9.2f %9.2f %9d\n", name, d.mean * 1e3,
                         d.p50 * 1e3, d.p90 * 1e3, d.p99 * 1e3, d.max * 1e3, d.count);
}

nlohmann::json ToJson(const Distribution& d) {
  return {{"count", d.count}, {"mean", d.mean}, {"p50", d.p50},
          {"p90", d.p90},     {"p99", d.p99},   {"max", d.max}};
}

}  // namespace

Distribution Summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {.count = values.size(),
          .mean = sum / static_cast<double>(values.size()),
          .p50 = Percentile(values, 0.50),
          .p90 = Percentile(values, 0.90),
          .p99 = Percentile(values, 0.99),
          .max = values.back()};
}

BenchReport MakeReport(const std::vector<RequestRecord>& records, absl::Duration wall) {
  BenchReport report;
  report.wall_seconds = absl::ToDoubleSeconds(wall);
  std::vector<double> ttft, tpot, gap, latency;
  for (const RequestRecord& record : records) {
    report.output_tokens += record.num_tokens;
    report.prompt_tokens += record.prompt_tokens;
    report.cached_tokens += record.cached_tokens;
    gap.insert(gap.end(), record.gaps.begin(), record.gaps.end());
    if (record.num_tokens > 0) {
      ttft.push_back(absl::ToDoubleSeconds(record.first_token - record.arrival));
    }
    if (record.dropped) {
      ++report.num_dropped;
    } else if (record.code != absl::StatusCode::kOk) {
      ++report.failures[absl::StatusCodeToString(record.code)];
    } else {
      ++report.num_ok;
      latency.push_back(absl::ToDoubleSeconds(record.end - record.arrival));
      if (record.num_tokens >= 2) {
        tpot.push_back(absl::ToDoubleSeconds(record.last_token - record.first_token) /
                       (record.num_tokens - 1));
      }
    }
  }
  if (report.wall_seconds > 0) {
    report.output_tokens_per_second =
        static_cast<double>(report.output_tokens) / report.wall_seconds;
    report.requests_per_second = static_cast<double>(report.num_ok) / report.wall_seconds;
  }
  report.ttft = Summarize(std::move(ttft));
  report.tpot = Summarize(std::move(tpot));
  report.gap = Summarize(std::move(gap));
  report.latency = Summarize(std::move(latency));
  return report;
}

std::string FormatReport(const BenchReport& report) {
  std::string out = absl::StrFormat("requests       %d ok, %d cancelled by the load", report.num_ok,
                                    report.num_dropped);
  for (const auto& [code, count] : report.failures)
    absl::StrAppendFormat(&out, ", %d %s", count, code);
  absl::StrAppendFormat(&out, "\ntime           %.2f s\n", report.wall_seconds);
  absl::StrAppendFormat(&out, "throughput     %.1f output tokens/s, %.2f requests/s\n",
                        report.output_tokens_per_second, report.requests_per_second);
  absl::StrAppendFormat(&out, "tokens         %d prompt (%d cached), %d output\n",
                        report.prompt_tokens, report.cached_tokens, report.output_tokens);
  if (!report.server.empty()) {
    out += "server        ";
    const char* separator = " ";
    for (const auto& [name, growth] : report.server) {
      absl::StrAppendFormat(&out, "%s%s +%d", separator, name, growth);
      separator = ", ";
    }
    out += "\n";
  }
  absl::StrAppendFormat(&out, "\n%-14s %9s %9s %9s %9s %9s %9s\n", "milliseconds", "mean", "p50",
                        "p90", "p99", "max", "count");
  out += FormatRow("TTFT", report.ttft);
  out += FormatRow("TPOT", report.tpot);
  out += FormatRow("token gap", report.gap);
  out += FormatRow("end to end", report.latency);
  return out;
}

nlohmann::json ToJson(const BenchReport& report) {
  return {{"wall_seconds", report.wall_seconds},
          {"num_ok", report.num_ok},
          {"num_dropped", report.num_dropped},
          {"failures", report.failures},
          {"prompt_tokens", report.prompt_tokens},
          {"cached_tokens", report.cached_tokens},
          {"output_tokens", report.output_tokens},
          {"output_tokens_per_second", report.output_tokens_per_second},
          {"requests_per_second", report.requests_per_second},
          {"ttft_seconds", ToJson(report.ttft)},
          {"tpot_seconds", ToJson(report.tpot)},
          {"gap_seconds", ToJson(report.gap)},
          {"latency_seconds", ToJson(report.latency)},
          {"server", report.server}};
}

}  // namespace quire::client
