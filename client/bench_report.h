#pragma once

// Turns the records of a load's requests into one page of numbers.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "nlohmann/json_fwd.hpp"

namespace quire::client {

// One request, as its client saw it. Times are since the start of the load.
struct RequestRecord {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  bool dropped = false;  // cancelled by the load itself
  // The time at which the request was to be sent. Latencies count from this time, so they include
  // the delay of a client that sends late.
  absl::Duration arrival;
  absl::Duration first_token;
  absl::Duration last_token;
  absl::Duration end;
  uint32_t num_tokens = 0;  // generated tokens that arrived
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;
  std::vector<float> gaps;  // seconds between messages that carried tokens
};

// Percentiles interpolate between the nearest two values.
struct Distribution {
  uint64_t count = 0;
  double mean = 0.0;
  double p50 = 0.0;
  double p90 = 0.0;
  double p99 = 0.0;
  double max = 0.0;
};
Distribution Summarize(std::vector<double> values);

struct BenchReport {
  double wall_seconds = 0.0;
  uint64_t num_ok = 0;
  uint64_t num_dropped = 0;                  // cancelled by the load itself
  std::map<std::string, uint64_t> failures;  // by status code
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t output_tokens = 0;  // of all requests, including failed ones
  double output_tokens_per_second = 0.0;
  double requests_per_second = 0.0;  // counts ok requests
  Distribution ttft;                 // seconds from arrival to the first token
  Distribution tpot;     // seconds per token after the first; ok requests of at least two tokens
  Distribution gap;      // seconds between two messages of one stream
  Distribution latency;  // seconds from arrival to the end; ok requests
  std::map<std::string, int64_t>
      server;  // growth of the server's counters; empty when GetStats failed
};

BenchReport MakeReport(const std::vector<RequestRecord>& records, absl::Duration wall);

// Makes a table for people, with times in milliseconds.
std::string FormatReport(const BenchReport& report);
// Makes one JSON object with the field names of the report. The names of distributions get the
// suffix "_seconds". Times are in seconds.
nlohmann::json ToJson(const BenchReport& report);

}  // namespace quire::client
