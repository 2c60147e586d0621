#include "server/bearer_tokens.h"

#include <algorithm>
#include <fstream>

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

#include "base/strings.h"

namespace quire::server {
namespace {

constexpr std::string_view kScheme = "bearer ";
constexpr size_t kMinTokenLength = 16;  // shorter ones can be guessed over the network

std::array<uint8_t, 32> DigestOf(std::string_view token) {
  std::array<uint8_t, 32> digest;
  ::SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return digest;
}

}  // namespace

absl::StatusOr<BearerTokens> BearerTokens::Load(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::InvalidArgumentError(absl::StrFormat("--auth_token_file: cannot read %s", path));
  }
  BearerTokens tokens;
  std::string raw;
  for (int number = 1; std::getline(file, raw); ++number) {
    const std::string_view token = base::ToStd(absl::StripAsciiWhitespace(raw));
    if (token.empty() || token.front() == '#') continue;
    const bool printable =
        std::ranges::all_of(token, [](unsigned char c) { return absl::ascii_isgraph(c); });
    if (!printable || token.size() < kMinTokenLength) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--auth_token_file: %s:%d: want at least %d printable characters without spaces", path,
          number, kMinTokenLength));
    }
    tokens.digests_.push_back(DigestOf(token));
  }
  if (tokens.digests_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--auth_token_file: %s: holds no token", path));
  }
  return tokens;
}

std::optional<size_t> BearerTokens::Match(std::string_view authorization) const {
  if (!absl::StartsWithIgnoreCase(base::ToAbsl(authorization), base::ToAbsl(kScheme))) {
    return std::nullopt;
  }
  const Digest digest = DigestOf(authorization.substr(kScheme.size()));
  std::optional<size_t> match;
  for (size_t i = 0; i < digests_.size(); ++i) {  // all of them, whichever matches
    if (CRYPTO_memcmp(digest.data(), digests_[i].data(), digest.size()) == 0) match = i;
  }
  return match;
}

}  // namespace quire::server
