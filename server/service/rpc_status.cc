#include "server/service/rpc_status.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
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

// Returns the name at the beginning of a message: "sampling.top_p" for "sampling.top_p: want (0,
// 1], got 1.5". Returns "" when the message does not begin with a name.
std::string_view LeadingName(std::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == std::string_view::npos || colon == 0) return {};
  const std::string_view name = message.substr(0, colon);
  return std::ranges::all_of(name, IsFieldCharacter) ? name : std::string_view();
}

// Returns the reason in ErrorInfo: "SCHED_PRIORITY_PERMISSION_DENIED" for a PermissionDenied of the
// name "sched.priority".
std::string ReasonOf(std::string_view name, absl::StatusCode code) {
  std::string reason = absl::AsciiStrToUpper(base::ToAbsl(name));
  std::ranges::replace_if(
      reason, [](char c) { return c == '.' || c == '[' || c == ']'; }, '_');
  return absl::StrCat(reason, "_", absl::StatusCodeToString(code));
}

// Adds the message of google.rpc that says what `name`, at the beginning of the status message, is
// for an error of this code. `description` is the rest of the message.
void AddSubject(std::string_view name, std::string_view description, absl::StatusCode code,
                google::rpc::Status& out) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument: {
      google::rpc::BadRequest details;
      google::rpc::BadRequest::FieldViolation& violation = *details.add_field_violations();
      violation.set_field(std::string(name));
      violation.set_description(std::string(description));
      out.add_details()->PackFrom(details);
      return;
    }
    case absl::StatusCode::kResourceExhausted: {
      google::rpc::QuotaFailure details;
      google::rpc::QuotaFailure::Violation& violation = *details.add_violations();
      violation.set_subject(std::string(name));
      violation.set_description(std::string(description));
      out.add_details()->PackFrom(details);
      return;
    }
    case absl::StatusCode::kFailedPrecondition: {
      google::rpc::PreconditionFailure details;
      google::rpc::PreconditionFailure::Violation& violation = *details.add_violations();
      violation.set_type("STATE");
      violation.set_subject(std::string(name));
      violation.set_description(std::string(description));
      out.add_details()->PackFrom(details);
      return;
    }
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kAborted: {
      google::rpc::ErrorInfo details;
      details.set_reason(ReasonOf(name, code));
      details.set_domain("quire");
      out.add_details()->PackFrom(details);
      return;
    }
    default:
      return;
  }
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
  const std::string_view message = out.message();
  if (const std::string_view name = LeadingName(message); !name.empty()) {
    AddSubject(name, message.substr(name.size() + 2), status.code(), out);
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
