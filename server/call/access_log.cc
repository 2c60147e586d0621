#include "server/call/access_log.h"

#include <cstddef>
#include <initializer_list>

namespace quire::server {

AccessLogMode ParseAccessLogMode(std::string_view text) {
  if (text == "off") return AccessLogMode::kOff;
  return text == "errors" ? AccessLogMode::kErrors : AccessLogMode::kAll;
}

void AccessLog::Ended(const EndedCall& call, absl::Time now) {
  const bool failed = call.code != absl::StatusCode::kOk;
  if (mode_ == AccessLogMode::kOff || (mode_ == AccessLogMode::kErrors && !failed)) return;
  const auto rpc = static_cast<size_t>(call.rpc);
  const auto code = static_cast<size_t>(call.code);
  const auto write = [&](std::initializer_list<base::LogField> fields) {
    if (!failed) return base::Log(base::LogLevel::kInfo, "rpc", kRpcs[rpc].method, fields);
    base::LogLimited(failures_[rpc][code], now, base::LogLevel::kInfo, "rpc", kRpcs[rpc].method,
                     fields);
  };
  const base::LogField id("request_id", call.request_id);
  const base::LogField caller("caller", call.caller == nullptr ? "" : call.caller->name);
  const base::LogField tenant("tenant", call.caller == nullptr ? "" : call.caller->tenant);
  const base::LogField peer("peer", call.peer);
  const base::LogField ended("code", kStatusCodeNames[code]);
  if (call.summary == nullptr) return write({id, caller, tenant, peer, ended});
  const engine::Usage& usage = call.summary->usage;
  write({id,
         caller,
         tenant,
         peer,
         ended,
         {"prompt_tokens", usage.prompt_tokens},
         {"cached_tokens", usage.cached_tokens},
         {"completion_tokens", usage.completion_tokens},
         {"ttft_ms", absl::ToInt64Milliseconds(call.summary->timings.ttft)},
         {"total_ms", absl::ToInt64Milliseconds(call.total)}});
}

}  // namespace quire::server
