#pragma once

// Writes one log line for each call that has ended. A client can make failing calls at no cost, so
// their lines are limited: in each second, the log has at most kMaxFailures lines for failed calls
// of one RPC with one status code. If further calls fail in that second, the next line of that RPC
// and code is preceded by a line with the number of calls that were not logged.

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/mutex.h"
#include "engine/request/token_sink.h"
#include "server/call/rpc_counters.h"
#include "server/identity/principal.h"

namespace quire::server {

enum class AccessLogMode { kOff, kErrors, kAll };

// `text` is "off", "errors" or "all".
AccessLogMode ParseAccessLogMode(std::string_view text);

// The facts about a call that the log shows: the caller, the client's address, the RPC, and the
// result. A prompt is never logged.
struct EndedCall {
  Rpc rpc = Rpc::kGenerate;
  const Principal* caller = nullptr;  // null: an unknown caller
  std::string_view peer;              // the client's address
  std::string_view request_id;
  absl::StatusCode code = absl::StatusCode::kOk;
  const engine::RequestSummary* summary = nullptr;  // set for calls of InferenceService
  absl::Duration total;                             // from the call's start to its end
};

// Thread-safe.
class AccessLog {
 public:
  explicit AccessLog(AccessLogMode mode) : mode_(mode) {}

  void Ended(const EndedCall& call, absl::Time now);

  // The most lines per second for failed calls of one RPC with one status code.
  static constexpr int64_t kMaxFailures = 10;

 private:
  struct Failures {
    absl::Time second;       // the second that is being counted
    int64_t num_lines = 0;   // lines written in that second
    int64_t num_silent = 0;  // calls without a line since the last line
  };

  // Counts a failed call. Returns a negative number if the limit is reached and the call must not
  // be logged. Otherwise returns the number of failed calls of this RPC and code that were not
  // logged since the last line.
  int64_t CountFailure(Rpc rpc, absl::StatusCode code, absl::Time now);

  const AccessLogMode mode_;
  base::Mutex mu_;
  std::array<std::array<Failures, kStatusCodeNames.size()>, kRpcNames.size()> failures_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::server
