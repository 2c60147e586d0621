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

// The limits of a tenant; absent where its lines set none.
struct TenantFields {
  std::optional<int32_t> max_priority;  // -100..100
  std::optional<int32_t> max_waiting;   // requests, 1..2^20
  std::optional<int32_t> max_running;   // sequences, 1..2^16
  std::optional<int32_t> share;         // 1..100

  // Takes over the fields that `other` has; false when both have one and the two differ.
  bool TryMerge(const TenantFields& other);
};

struct IdentityLine {
  std::optional<TokenDigest> token;
  std::string certificate;  // name in a client certificate; "" on a token's line
  std::string name;
  std::string tenant;
  bool is_operator = false;
  bool any_tenant = false;
  TenantFields limits;
};

// `line`, which is not empty and does not begin with a blank, has one of these forms:
//   TOKEN                       printable ASCII without spaces, at least 16 characters
//   token:SHA256 [FIELD=VALUE]  the token's digest in 64 hexadecimal digits
//   cert:NAME [FIELD=VALUE]     name in a client certificate; cert:"A NAME" when it has spaces
// Fields: name, tenant (default: the name), roles (operator, any-tenant; separated by a comma), and
// those of TenantFields. The message of an InvalidArgument names no place in the file and never
// contains a token.
absl::StatusOr<IdentityLine> ParseIdentityLine(std::string_view line);

}  // namespace quire::server
