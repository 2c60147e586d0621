#pragma once

// Who may call: the tokens of --auth_token_file.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quire::server {

// Immutable; thread-safe. Keeps digests, not the tokens.
class BearerTokens {
 public:
  // One token a line: printable ASCII without spaces, at least 16 characters. Empty lines and lines
  // that begin with '#' are skipped. InvalidArgument names the line, never the token.
  static absl::StatusOr<BearerTokens> Load(const std::string& path);

  // Which token an `authorization` header holds ("Bearer TOKEN"); nullopt when none of them. The
  // time it takes says nothing about how near a wrong token was.
  std::optional<size_t> Match(std::string_view authorization) const;

  size_t size() const { return digests_.size(); }

 private:
  using Digest = std::array<uint8_t, 32>;

  std::vector<Digest> digests_;
};

}  // namespace quire::server
