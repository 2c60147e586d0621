#pragma once

// SHA-256 (FIPS 180-4) of data that comes in parts.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace quire::base {

using Sha256Digest = std::array<uint8_t, 32>;

// Not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();

  void Add(std::span<const std::byte> bytes);
  void Add(std::string_view text) { Add(std::as_bytes(std::span(text))); }
  // Adds the eight bytes of `value`, least significant first.
  void AddInt(int64_t value);
  // Adds the length of `text`, then `text`. So the borders of what is added change the digest.
  void AddSized(std::string_view text);

  // Returns the digest of everything that was added. Called once, and last.
  Sha256Digest Finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// Returns the digest in 64 lower-case hexadecimal digits.
std::string ToHex(const Sha256Digest& digest);

}  // namespace quire::base
