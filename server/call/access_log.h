#pragma once

// Writes one log line for each call that has ended. A client can make failing calls at no cost, so
// the lines of failed calls of one RPC with one status code have a LogLimit.

#include <array>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/logging.h"
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

  // `now` is a time of base::SteadyNow().
  void Ended(const EndedCall& call, absl::Time now);

 private:
  const AccessLogMode mode_;
  std::array<std::array<base::LogLimit, kStatusCodeNames.size()>, kRpcs.size()> failures_;
};

}  // namespace quire::server
