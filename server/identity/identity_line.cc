#include "server/identity/identity_line.h"

#include <algorithm>

#include <openssl/sha.h>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace quire::server {
namespace {

constexpr std::string_view kTokenPrefix = "token:";
constexpr std::string_view kCertificatePrefix = "cert:";
constexpr size_t kMinTokenLength = 16;  // shorter tokens can be guessed over the network
constexpr size_t kMaxNameLength = 256;  // bytes

template <typename... Args>
absl::Status Invalid(const absl::FormatSpec<Args...>& format, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrFormat(format, args...));
}

bool IsWord(std::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](unsigned char c) { return absl::ascii_isgraph(c); });
}

// Returns a name for the token: "token-" and the first part of the token's digest, which is enough
// to tell tokens apart. The same token gets the same name in every file.
std::string NameOf(const TokenDigest& digest) {
  return absl::StrCat("token-", absl::BytesToHexString(absl::string_view(
                                    reinterpret_cast<const char*>(digest.data()), 6)));
}

// Removes the first word and the blanks after it from the front of `rest`, and returns the word.
std::string_view TakeWord(std::string_view& rest) {
  const size_t end = std::min(rest.find_first_of(" \t"), rest.size());
  const std::string_view word = rest.substr(0, end);
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t", end), rest.size()));
  return word;
}

absl::StatusOr<TokenDigest> ParseDigest(std::string_view digits) {
  TokenDigest digest;
  if (digits.size() != 2 * digest.size() ||
      !std::ranges::all_of(digits, [](unsigned char c) { return absl::ascii_isxdigit(c); })) {
    return Invalid("token: want SHA-256 in %d hexadecimal digits, got %d characters",
                   2 * digest.size(), digits.size());
  }
  const std::string bytes = absl::HexStringToBytes(base::ToAbsl(digits));
  std::ranges::copy(bytes, digest.begin());
  return digest;
}

absl::StatusOr<std::string> TakeCertificateName(std::string_view& rest) {
  if (!rest.starts_with('"')) return std::string(TakeWord(rest));
  const size_t end = rest.find('"', 1);
  if (end == std::string_view::npos) return Invalid("cert: want a closing quotation mark");
  std::string name(rest.substr(1, end - 1));
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t", end + 1), rest.size()));
  return name;
}

absl::Status SetRoles(std::string_view value, IdentityLine& line) {
  for (const absl::string_view role : absl::StrSplit(base::ToAbsl(value), ',')) {
    if (role == "operator") {
      line.is_operator = true;
    } else if (role == "any-tenant") {
      line.any_tenant = true;
    } else {
      return Invalid("roles: want operator or any-tenant, got \"%s\"", role);
    }
  }
  return absl::OkStatus();
}

absl::Status SetNumber(std::string_view key, std::string_view value, int32_t min, int32_t max,
                       std::optional<int32_t>& target) {
  int32_t number = 0;
  if (!absl::SimpleAtoi(base::ToAbsl(value), &number) || number < min || number > max) {
    return Invalid("%s: want an integer %d..%d, got \"%s\"", key, min, max, value);
  }
  target = number;
  return absl::OkStatus();
}

absl::Status SetField(std::string_view field, IdentityLine& line) {
  const size_t equals = field.find('=');
  if (equals == std::string_view::npos) return Invalid("want FIELD=VALUE after the first word");
  const std::string_view key = field.substr(0, equals);
  const std::string_view value = field.substr(equals + 1);
  if (key == "name" || key == "tenant") {
    if (!IsWord(value) || value.size() > kMaxNameLength) {
      return Invalid("%s: want 1..%d printable characters", key, kMaxNameLength);
    }
    (key == "name" ? line.name : line.tenant) = std::string(value);
    return absl::OkStatus();
  }
  if (key == "roles") return SetRoles(value, line);
  if (key == "max_priority") return SetNumber(key, value, -100, 100, line.limits.max_priority);
  if (key == "max_waiting") return SetNumber(key, value, 1, 1 << 20, line.limits.max_waiting);
  if (key == "max_running") return SetNumber(key, value, 1, 1 << 16, line.limits.max_running);
  if (key == "max_blocks") return SetNumber(key, value, 1, 1 << 30, line.limits.max_blocks);
  if (key == "share") return SetNumber(key, value, 1, 100, line.limits.share);
  if (key == "requests_per_minute") {
    return SetNumber(key, value, 1, 1 << 20, line.limits.requests_per_minute);
  }
  if (key == "tokens_per_minute") {
    return SetNumber(key, value, 1, 1 << 30, line.limits.tokens_per_minute);
  }
  // The message does not quote the field, because the field could be a token in the wrong place.
  return Invalid(
      "unknown field; want name, tenant, roles, max_priority, max_waiting, max_running, "
      "max_blocks, share, requests_per_minute or tokens_per_minute");
}

bool TryMergeOne(const std::optional<int32_t>& from, std::optional<int32_t>& to) {
  if (from.has_value() && to.has_value()) return *from == *to;
  if (from.has_value()) to = from;
  return true;
}

}  // namespace

TokenDigest DigestOf(std::string_view token) {
  TokenDigest digest;
  ::SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return digest;
}

bool TenantFields::TryMerge(const TenantFields& other) {
  return TryMergeOne(other.max_priority, max_priority) &&
         TryMergeOne(other.max_waiting, max_waiting) &&
         TryMergeOne(other.max_running, max_running) && TryMergeOne(other.max_blocks, max_blocks) &&
         TryMergeOne(other.share, share) &&
         TryMergeOne(other.requests_per_minute, requests_per_minute) &&
         TryMergeOne(other.tokens_per_minute, tokens_per_minute);
}

absl::StatusOr<IdentityLine> ParseIdentityLine(std::string_view text) {
  IdentityLine line;
  std::string_view rest = text;
  if (text.starts_with(kTokenPrefix)) {
    rest.remove_prefix(kTokenPrefix.size());
    ASSIGN_OR_RETURN(line.token, ParseDigest(TakeWord(rest)));
  } else if (text.starts_with(kCertificatePrefix)) {
    rest.remove_prefix(kCertificatePrefix.size());
    ASSIGN_OR_RETURN(line.certificate, TakeCertificateName(rest));
    if (line.certificate.empty()) return Invalid("cert: want a name");
  } else if (IsWord(text) && text.size() >= kMinTokenLength) {
    line.token = DigestOf(text);
    rest = {};
  } else {
    return Invalid(
        "want a token of at least %d printable characters without spaces, or token:SHA256 or "
        "cert:NAME with fields",
        kMinTokenLength);
  }
  while (!rest.empty()) RETURN_IF_ERROR(SetField(TakeWord(rest), line));
  if (line.name.empty()) line.name = line.token ? NameOf(*line.token) : line.certificate;
  if (line.tenant.empty()) line.tenant = line.name;
  return line;
}

}  // namespace quire::server
