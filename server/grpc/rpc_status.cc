#include "server/grpc/rpc_status.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "google/rpc/error_details.pb.h"

#include "base/strings.h"
#include "base/utf8.h"
#include "engine/request/retry_after.h"

namespace quire::server {
namespace {

bool IsFieldCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '[' ||
         c == ']';
}

// Returns the field name at the beginning of a message: "sampling.top_p" for "sampling.top_p: want
// (0, 1], got 1.5". Returns "" when the message does not begin with a field name.
std::string_view LeadingField(std::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == std::string_view::npos || colon == 0) return {};
  const std::string_view field = message.substr(0, colon);
  return std::ranges::all_of(field, IsFieldCharacter) ? field : std::string_view();
}

// Returns `message` in a form that fits into gRPC's trailers. A message may quote a client's input,
// which may be long and may contain any bytes. Control characters are escaped. The middle of a long
// message is cut out, because the beginning names the field and the end has the advice.
std::string ForTrailers(std::string_view message) {
  constexpr size_t kHead = 300;
  constexpr size_t kTail = 200;
  std::string cut(message);
  if (cut.size() > 2 * (kHead + kTail)) {
    cut.replace(kHead, cut.size() - kHead - kTail,
                absl::StrFormat("... (%d bytes left out) ...", cut.size() - kHead - kTail));
  }
  std::string out;
  for (const char c : base::LossyUtf8(cut)) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppendFormat(&out, "\\x%02x", c);
    } else {
      out.push_back(c);
    }
  }
  return out;
}

// Returns how long a client should wait before it tries again, or zero if a retry cannot help.
absl::Duration RetryDelay(const absl::Status& status) {
  if (const auto delay = engine::RetryAfter(status)) return *delay;
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return absl::Seconds(1);
    case absl::StatusCode::kUnavailable:
      return absl::Seconds(5);  // by then another or a restarted server may answer
    default:
      return absl::ZeroDuration();
  }
}

}  // namespace

google::rpc::Status ToRpcStatus(const absl::Status& status) {
  google::rpc::Status out;
  out.set_code(static_cast<int32_t>(status.code()));
  out.set_message(ForTrailers(base::ToStd(status.message())));
  if (status.code() == absl::StatusCode::kInvalidArgument) {
    const std::string_view message = out.message();
    const std::string_view field = LeadingField(message);
    if (!field.empty()) {
      google::rpc::BadRequest details;
      google::rpc::BadRequest::FieldViolation& violation = *details.add_field_violations();
      violation.set_field(std::string(field));
      violation.set_description(std::string(message.substr(field.size() + 2)));
      out.add_details()->PackFrom(details);
    }
  }
  if (absl::Duration delay = RetryDelay(status); delay > absl::ZeroDuration()) {
    google::rpc::RetryInfo details;
    details.mutable_retry_delay()->set_seconds(absl::IDivDuration(delay, absl::Seconds(1), &delay));
    details.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(delay)));
    out.add_details()->PackFrom(details);
  }
  return out;
}

}  // namespace quire::server
