#include "server/door/request_head.h"

#include <algorithm>
#include <array>
#include <bitset>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace quire::server::door {
namespace {

constexpr size_t kMostNameBytesInErrors = 64;

// The pseudo headers of a request (RFC 9113, 8.3.1). All but the last must be there.
constexpr std::array<std::string_view, 4> kPseudoHeaders = {":method", ":scheme", ":path",
                                                            ":authority"};
constexpr size_t kPath = 2;
constexpr size_t kAuthority = 3;

// The headers that gRPC 1.51 or Quire reads as one value. gRPC takes the last one of several.
constexpr std::array<std::string_view, 21> kSingleHeaders = {"authorization",
                                                             "content-type",
                                                             "endpoint-load-metrics-bin",
                                                             "grpc-accept-encoding",
                                                             "grpc-encoding",
                                                             "grpc-internal-encoding-request",
                                                             "grpc-message",
                                                             "grpc-previous-rpc-attempts",
                                                             "grpc-retry-pushback-ms",
                                                             "grpc-server-stats-bin",
                                                             "grpc-status",
                                                             "grpc-tags-bin",
                                                             "grpc-timeout",
                                                             "grpc-trace-bin",
                                                             "grpclb_client_stats",
                                                             "host",
                                                             "lb-cost-bin",
                                                             "lb-token",
                                                             "te",
                                                             "user-agent",
                                                             "x-request-id"};

absl::Status Malformed(std::string_view name, std::string_view want) {
  return absl::InvalidArgumentError(
      absl::StrFormat("header \"%s\": want %s",
                      absl::CHexEscape(std::string(name.substr(0, kMostNameBytesInErrors))), want));
}

bool IsNameCharacter(char c) {
  return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'z') || c == '_' ||
         c == '.' || c == '-';
}

bool IsPrintable(char c) { return c >= ' ' && c <= '~'; }

// Returns true for base64 with or without padding, which is what gRPC decodes. Bits that the last
// digit has too many must be zero: else gRPC loses all metadata of the head, and serves the call.
bool IsBase64(std::string_view text) {
  std::string bytes;
  if (!absl::Base64Unescape(base::ToAbsl(text), &bytes)) return false;
  const std::string padded = absl::Base64Escape(bytes);
  const size_t digits = padded.find_last_not_of('=') + 1;
  return text == padded || text == std::string_view(padded).substr(0, digits);
}

absl::Status CheckValue(const HeaderField& field) {
  if (field.name.ends_with("-bin")) {
    if (field.value.starts_with('\0') || IsBase64(field.value)) return absl::OkStatus();
    return Malformed(field.name, "base64, since its name ends with -bin");
  }
  if (std::ranges::all_of(field.value, IsPrintable)) return absl::OkStatus();
  return Malformed(field.name, "a value of printable ASCII");
}

}  // namespace

absl::StatusOr<RequestHead> ReadHead(const HeaderList& fields) {
  RequestHead head;
  std::array<const HeaderField*, kPseudoHeaders.size()> pseudo{};
  std::bitset<kSingleHeaders.size()> seen;
  const HeaderField* host = nullptr;
  bool in_pseudo = true;
  for (const HeaderField& field : fields) {
    if (field.name.starts_with(':')) {
      const auto it = std::ranges::find(kPseudoHeaders, field.name);
      if (it == kPseudoHeaders.end()) return Malformed(field.name, "no such header in a request");
      if (!in_pseudo) return Malformed(field.name, "it before the headers without a colon");
      const HeaderField*& place = pseudo[static_cast<size_t>(it - kPseudoHeaders.begin())];
      if (place != nullptr) return Malformed(field.name, "it once");
      place = &field;
    } else {
      in_pseudo = false;
      if (field.name.empty() || !std::ranges::all_of(field.name, IsNameCharacter)) {
        return Malformed(field.name, "a name of [0-9a-z_.-]");
      }
      const auto it = std::ranges::find(kSingleHeaders, field.name);
      if (it != kSingleHeaders.end()) {
        const auto index = static_cast<size_t>(it - kSingleHeaders.begin());
        if (seen[index]) return Malformed(field.name, "it at most once");
        seen.set(index);
      }
      if (field.name == "authorization") head.authorization = field.value;
      if (field.name == "grpc-encoding") head.encoding = field.value;
      if (field.name == "host") host = &field;
    }
    RETURN_IF_ERROR(CheckValue(field));
  }
  for (size_t i = 0; i < kAuthority; ++i) {
    if (pseudo[i] == nullptr) return Malformed(kPseudoHeaders[i], "it in each request");
  }
  const HeaderField* const authority = pseudo[kAuthority];
  if (host != nullptr && authority != nullptr && host->value != authority->value) {
    return Malformed("host", "the same as :authority, or none");
  }
  head.path = pseudo[kPath]->value;
  return head;
}

}  // namespace quire::server::door
