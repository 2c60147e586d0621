#pragma once

// The page tokens of lists: opaque texts that say where the next page begins.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace quire::server {

// Makes and reads page tokens. A token has a signature with a key of this object, so a client can
// neither make a token nor change one. Thread-safe.
class PageTokens {
 public:
  static constexpr absl::Duration kLifetime = absl::Hours(1);

  PageTokens();  // draws the key

  // Returns a token for the page after `cursor`. `query` stands for all that must not change from
  // page to page: the RPC, the caller and the filter. `now` is a time of base::SteadyClock().
  std::string Make(std::string_view query, uint64_t cursor, absl::Time now) const;
  // Returns the cursor of `token`. Returns InvalidArgument unless Make made the token for the same
  // `query` at most kLifetime before `now`.
  absl::StatusOr<uint64_t> Read(std::string_view query, std::string_view token,
                                absl::Time now) const;

 private:
  std::string Sign(std::string_view query, std::string_view content) const;

  std::array<unsigned char, 32> key_;  // constant
};

}  // namespace quire::server
