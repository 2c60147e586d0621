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

// What a tenant may take; absent where its lines say nothing.
struct TenantFields {
  std::optional<int32_t> max_priority;  // -100..100
  std::optional<int32_t> max_waiting;   // requests, 1..2^20
  std::optional<int32_t> max_running;   // sequences, 1..2^16
  std::optional<int32_t> share;         // 1..100

  // Takes over what the other says; false when both say, and differ.
  bool TryMerge(const TenantFields& other);
};

struct IdentityLine {
  std::optional<TokenDigest> token;
  std::string certificate;  // its name; "" on a token's line
  std::string name;
  std::string tenant;
  bool is_operator = false;
  bool any_tenant = false;
  TenantFields limits;
};

// Forms of `line`, which is neither empty nor begins with a blank:
//   TOKEN                       printable ASCII without spaces, at least 16 characters
//   token:SHA256 [FIELD=VALUE]  in 64 hexadecimal digits
//   cert:NAME [FIELD=VALUE]     of a client certificate; cert:"A NAME" where it has spaces
// Fields: name, tenant (the name when there is none), roles (operator, any-tenant; a comma between
// them), and TenantFields. InvalidArgument without the place; never with a token in it.
absl::StatusOr<IdentityLine> ParseIdentityLine(std::string_view line);

}  // namespace quire::server
