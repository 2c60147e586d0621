#pragma once

// A line a call, at its end. Calls that fail cost a stranger nothing, so of those that fail alike
// only some leave a line each second; another line tells how many did not.

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/mutex.h"
#include "engine/request/token_sink.h"
#include "server/identity/principal.h"
#include "server/rpc_counters.h"

namespace quire::server {

enum class AccessLogMode { kOff, kErrors, kAll };

// "off", "errors" or "all".
AccessLogMode ParseAccessLogMode(std::string_view text);

// Who, from where, what, how; never a prompt.
struct EndedCall {
  Rpc rpc = Rpc::kGenerate;
  const Principal* caller = nullptr;  // null: a stranger
  std::string_view peer;              // its address
  std::string_view request_id;
  absl::StatusCode code = absl::StatusCode::kOk;
  const engine::RequestSummary* summary = nullptr;  // of those that generate
  absl::Duration total;
};

// Thread-safe.
class AccessLog {
 public:
  explicit AccessLog(AccessLogMode mode) : mode_(mode) {}

  void Ended(const EndedCall& call, absl::Time now);

  // Of one RPC and one code, a second.
  static constexpr int64_t kMaxFailures = 10;

 private:
  struct Failures {
    absl::Time second;       // that is being counted
    int64_t num_lines = 0;   // in it
    int64_t num_silent = 0;  // calls without a line since the last line
  };

  // How many calls like this one left no line since the last that did; negative: nor does it.
  int64_t CountFailure(Rpc rpc, absl::StatusCode code, absl::Time now);

  const AccessLogMode mode_;
  base::Mutex mu_;
  std::array<std::array<Failures, kStatusCodeNames.size()>, kRpcNames.size()> failures_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::server
