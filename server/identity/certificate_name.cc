#include "server/identity/certificate_name.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include <arpa/inet.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "base/strings.h"

namespace quire::server {
namespace {

// The prefixes of typed names, by NameKind.
constexpr std::array<std::string_view, 5> kPrefixes = {"DNS:", "URI:", "email:", "IP:", "CN:"};

// Returns true for a scheme of RFC 3986 and a colon.
bool BeginsWithScheme(std::string_view text) {
  const size_t colon = text.find(':');
  return colon != std::string_view::npos && colon > 0 && absl::ascii_isalpha(text[0]) &&
         std::ranges::all_of(text.substr(0, colon), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '+' || c == '-' || c == '.';
         });
}

bool IsIpAddress(const std::string& text) {
  in6_addr address{};
  return ::inet_pton(AF_INET, text.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

NameKind KindThatReads(std::string_view text) {
  if (IsIpAddress(std::string(text))) return NameKind::kIp;
  if (BeginsWithScheme(text)) return NameKind::kUri;
  return text.find('@') == std::string_view::npos ? NameKind::kDns : NameKind::kEmail;
}

}  // namespace

std::string TypedName(NameKind kind, std::string_view text) {
  if (text.empty()) return "";
  return absl::StrCat(base::ToAbsl(kPrefixes[static_cast<size_t>(kind)]), base::ToAbsl(text));
}

bool IsTypedName(std::string_view name) {
  return std::ranges::any_of(kPrefixes,
                             [name](std::string_view prefix) { return name.starts_with(prefix); });
}

std::optional<std::string_view> PlainName(std::string_view typed_name) {
  for (size_t kind = 0; kind < kPrefixes.size(); ++kind) {
    if (!typed_name.starts_with(kPrefixes[kind])) continue;
    const std::string_view text = typed_name.substr(kPrefixes[kind].size());
    if (IsTypedName(text)) return std::nullopt;
    const auto named = static_cast<NameKind>(kind);
    if (named == NameKind::kCommon || named == KindThatReads(text)) return text;
  }
  return std::nullopt;
}

}  // namespace quire::server
