#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace quire::base {

struct Sha256::Context {
  Context() : digest(EVP_MD_CTX_new()) {}
  ~Context() { EVP_MD_CTX_free(digest); }
  EVP_MD_CTX* digest;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  QUIRE_CHECK(EVP_DigestInit_ex(context_->digest, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::Add(std::span<const std::byte> bytes) {
  QUIRE_CHECK(EVP_DigestUpdate(context_->digest, bytes.data(), bytes.size()) == 1);
}

void Sha256::AddInt(int64_t value) {
  std::array<std::byte, sizeof(value)> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
  }
  Add(bytes);
}

void Sha256::AddSized(std::string_view text) {
  AddInt(static_cast<int64_t>(text.size()));
  Add(text);
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  QUIRE_CHECK(EVP_DigestFinal_ex(context_->digest, digest.data(), nullptr) == 1);
  return digest;
}

std::string ToHex(const Sha256Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : digest) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

}  // namespace quire::base
