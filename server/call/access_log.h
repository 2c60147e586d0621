#pragma once

// Writes one line of the log for each call, when it has ended. A stranger can make calls that fail
// at no cost, so each second only some of those that fail alike leave a line; another line counts
// the rest.

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

// The facts that are logged of a call: who called from where, what, and how it ended. Never a
// prompt.
struct EndedCall {
  Rpc rpc = Rpc::kGenerate;
  const Principal* caller = nullptr;  // null: a stranger
  std::string_view peer;              // its address
  std::string_view request_id;
  absl::StatusCode code = absl::StatusCode::kOk;
  const engine::RequestSummary* summary = nullptr;  // of those that generate
  absl::Duration total;                             // from the call's start to its end
};

// Thread-safe.
class AccessLog {
 public:
  explicit AccessLog(AccessLogMode mode) : mode_(mode) {}

  void Ended(const EndedCall& call, absl::Time now);

  // The most lines a second for failed calls of one RPC with one code.
  static constexpr int64_t kMaxFailures = 10;

 private:
  struct Failures {
    absl::Time second;       // the second that is being counted
    int64_t num_lines = 0;   // lines written in it
    int64_t num_silent = 0;  // calls without a line since the last line
  };

  // Returns how many calls like this one left no line since the last that did. Negative: this call
  // leaves none either.
  int64_t CountFailure(Rpc rpc, absl::StatusCode code, absl::Time now);

  const AccessLogMode mode_;
  base::Mutex mu_;
  std::array<std::array<Failures, kStatusCodeNames.size()>, kRpcNames.size()> failures_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::server
