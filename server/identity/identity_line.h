#pragma once

// One line of --auth_token_file.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace quire::server {

using TokenDigest = std::array<uint8_t, 32>;  // SHA-256

TokenDigest DigestOf(std::string_view token);

// The limits of a tenant. A field is absent if no line of the tenant sets it.
struct TenantFields {
  std::optional<int32_t> max_priority;         // -100..100
  std::optional<int32_t> max_waiting;          // requests, 1..2^20
  std::optional<int32_t> max_running;          // sequences, 1..2^16
  std::optional<int32_t> max_blocks;           // of the KV cache, 1..2^30
  std::optional<int32_t> share;                // 1..100
  std::optional<int32_t> requests_per_minute;  // 1..2^20
  std::optional<int32_t> tokens_per_minute;    // 1..2^30

  // Copies the fields that are set in `other`. Returns false if both have the same field with
  // different values.
  bool TryMerge(const TenantFields& other);
};

struct IdentityLine {
  std::optional<TokenDigest> token;
  std::string certificate;  // a typed or plain name; "" on a token's line
  std::string name;
  std::string tenant;
  bool is_operator = false;
  bool any_tenant = false;
  TenantFields limits;
};

// Parses `line`, which must not be empty or begin with a blank. It has one of these forms:
//   TOKEN                       printable ASCII without spaces, at least 16 characters
//   token:SHA256 [FIELD=VALUE]  the token's digest in 64 hexadecimal digits
//   cert:NAME [FIELD=VALUE]     name in a client certificate; cert:"A NAME" when it has spaces.
//                               NAME may be typed (certificate_name.h)
// The fields are name, tenant (default: the name), roles (operator, any-tenant; separated by a
// comma), and the fields of TenantFields. The message of an InvalidArgument names no place in the
// file and never contains a token.
absl::StatusOr<IdentityLine> ParseIdentityLine(std::string_view line);

}  // namespace quire::server
