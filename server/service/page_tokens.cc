#include "server/service/page_tokens.h"

#include <bit>
#include <cstring>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/check.h"
#include "base/strings.h"

namespace quire::server {
namespace {

constexpr size_t kSignatureBytes = 16;

// The content of a token. Its bytes are only read by the process that wrote them.
struct Content {
  uint64_t cursor = 0;
  int64_t expires = 0;  // nanoseconds of the steady clock
};
constexpr size_t kTokenBytes = sizeof(Content) + kSignatureBytes;

}  // namespace

PageTokens::PageTokens() {
  QUIRE_CHECK(::RAND_bytes(key_.data(), static_cast<int>(key_.size())) == 1);
}

std::string PageTokens::Sign(std::string_view query, std::string_view content) const {
  const std::string text = std::string(content) + std::string(query);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  QUIRE_CHECK(::HMAC(::EVP_sha256(), key_.data(), static_cast<int>(key_.size()),
                     reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                     digest.data(), nullptr) != nullptr);
  return std::string(reinterpret_cast<const char*>(digest.data()), kSignatureBytes);
}

std::string PageTokens::Make(std::string_view query, uint64_t cursor, absl::Time now) const {
  const Content content{.cursor = cursor, .expires = absl::ToUnixNanos(now + kLifetime)};
  std::string bytes(sizeof(content), '\0');
  std::memcpy(bytes.data(), &content, sizeof(content));
  bytes += Sign(query, bytes);
  return absl::WebSafeBase64Escape(bytes);
}

absl::StatusOr<uint64_t> PageTokens::Read(std::string_view query, std::string_view token,
                                          absl::Time now) const {
  std::string bytes;
  const auto is_ours = [&] {
    // The longest text that Make returns is shorter than twice the bytes.
    if (token.size() > 2 * kTokenBytes) return false;
    if (!absl::WebSafeBase64Unescape(base::ToAbsl(token), &bytes)) return false;
    if (bytes.size() != kTokenBytes) return false;
    const std::string wanted = Sign(query, std::string_view(bytes).substr(0, sizeof(Content)));
    return ::CRYPTO_memcmp(wanted.data(), bytes.data() + sizeof(Content), kSignatureBytes) == 0;
  };
  if (!is_ours()) {
    return absl::InvalidArgumentError(
        "page_token: want the next_page_token of this server's answer to the same caller and the "
        "same request");
  }
  Content content;
  std::memcpy(&content, bytes.data(), sizeof(content));
  if (absl::ToUnixNanos(now) > content.expires) {
    return absl::InvalidArgumentError(
        "page_token: want a token of the last hour, got an older one");
  }
  return content.cursor;
}

std::string ListQuery(std::string_view rpc, std::string_view caller,
                      const std::optional<std::string>& tenant) {
  return absl::StrCat(base::ToAbsl(rpc), ":", caller.size(), ":", base::ToAbsl(caller),
                      tenant ? ":" : "", tenant.value_or(""));
}

absl::StatusOr<int32_t> CheckPageSize(std::optional<uint32_t> given) {
  constexpr uint32_t kDefault = 100;
  const uint32_t size = given.value_or(kDefault);
  if (size >= 1 && size <= uint32_t{kMaxPageSize}) return static_cast<int32_t>(size);
  return absl::InvalidArgumentError(
      absl::StrFormat("page_size: want 1..%d, got %d", kMaxPageSize, size));
}

}  // namespace quire::server
