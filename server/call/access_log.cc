#include "server/call/access_log.h"

#include <cstddef>
#include <utility>

#include "base/logging.h"

namespace quire::server {

AccessLogMode ParseAccessLogMode(std::string_view text) {
  if (text == "off") return AccessLogMode::kOff;
  return text == "errors" ? AccessLogMode::kErrors : AccessLogMode::kAll;
}

void AccessLog::Ended(const EndedCall& call, absl::Time now) {
  const bool failed = call.code != absl::StatusCode::kOk;
  if (mode_ == AccessLogMode::kOff || (mode_ == AccessLogMode::kErrors && !failed)) return;
  const int64_t num_silent = failed ? CountFailure(call.rpc, call.code, now) : 0;
  if (num_silent < 0) return;
  const std::string_view rpc = kRpcNames[static_cast<size_t>(call.rpc)];
  const base::LogField code("code", kStatusCodeNames[static_cast<size_t>(call.code)]);
  if (num_silent > 0) {
    base::Log(base::LogLevel::kInfo, "rpc", "calls that left no line",
              {{"rpc", rpc}, code, {"calls", num_silent}});
  }
  const base::LogField id("request_id", call.request_id);
  const base::LogField caller("caller", call.caller == nullptr ? "" : call.caller->name);
  const base::LogField tenant("tenant", call.caller == nullptr ? "" : call.caller->tenant);
  const base::LogField peer("peer", call.peer);
  if (call.summary == nullptr) {
    return base::Log(base::LogLevel::kInfo, "rpc", rpc, {id, caller, tenant, peer, code});
  }
  const engine::Usage& usage = call.summary->usage;
  base::Log(base::LogLevel::kInfo, "rpc", rpc,
            {id,
             caller,
             tenant,
             peer,
             code,
             {"prompt_tokens", usage.prompt_tokens},
             {"cached_tokens", usage.cached_tokens},
             {"completion_tokens", usage.completion_tokens},
             {"ttft_ms", absl::ToInt64Milliseconds(call.summary->timings.ttft)},
             {"total_ms", absl::ToInt64Milliseconds(call.total)}});
}

int64_t AccessLog::CountFailure(Rpc rpc, absl::StatusCode code, absl::Time now) {
  base::MutexLock lock(mu_);
  Failures& failures = failures_[static_cast<size_t>(rpc)][static_cast<size_t>(code)];
  if (now - failures.second >= absl::Seconds(1) || now < failures.second) {
    failures.second = now;
    failures.num_lines = 0;
  }
  if (failures.num_lines == kMaxFailures) {
    ++failures.num_silent;
    return -1;
  }
  ++failures.num_lines;
  return std::exchange(failures.num_silent, 0);
}

}  // namespace quire::server
