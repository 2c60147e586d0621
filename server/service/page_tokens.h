#pragma once

// Pages of lists, and their tokens: opaque texts that say where the next page begins.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/status_macros.h"

namespace quire::server {

inline constexpr int32_t kMaxPageSize = 1000;

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

// The page that a client asks for.
struct PageRequest {
  std::string query;                  // for PageTokens::Make
  std::optional<std::string> tenant;  // the filter; absent: none
  uint64_t after = 0;                 // the cursor; 0: the first page
  int32_t size = 0;                   // 1..kMaxPageSize
};

// Returns the query of a list; see PageTokens.
std::string ListQuery(std::string_view rpc, std::string_view caller,
                      const std::optional<std::string>& tenant);

// Returns `given`, or 100 if it is absent. Returns InvalidArgument unless it is 1..kMaxPageSize.
absl::StatusOr<int32_t> CheckPageSize(std::optional<uint32_t> given);

template <typename Request>
absl::StatusOr<int32_t> PageSizeOf(const Request& request) {
  return CheckPageSize(request.has_page_size() ? std::optional(request.page_size()) : std::nullopt);
}

// Reads a request of the RPC `rpc` by `caller`, the name of a principal. Request has page_size,
// page_token and tenant. Returns InvalidArgument if the size or the token is wrong.
template <typename Request>
absl::StatusOr<PageRequest> ReadPageRequest(const PageTokens& tokens, std::string_view rpc,
                                            std::string_view caller, const Request& request,
                                            absl::Time now) {
  PageRequest page;
  ASSIGN_OR_RETURN(page.size, PageSizeOf(request));
  if (request.has_tenant()) page.tenant = request.tenant();
  page.query = ListQuery(rpc, caller, page.tenant);
  if (!request.page_token().empty()) {
    ASSIGN_OR_RETURN(page.after, tokens.Read(page.query, request.page_token(), now));
  }
  return page;
}

}  // namespace quire::server
