#pragma once

// Parses JSON from files and clients. nlohmann::json throws an exception for invalid text.
// ParseJson turns the exception into an InvalidArgument, and no other code catches exceptions.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace quire::base {

inline constexpr int kMaxJsonDepth = 128;

// Parses one JSON value. `what` names the input in the error ("tokenizer.json"). Returns
// InvalidArgument when `text` is not one JSON value, or when it nests deeper than `max_depth`. The
// message about a syntax error has the line and the column.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view what,
                                         int max_depth = kMaxJsonDepth);

// Like ParseJson, but also returns InvalidArgument when the outermost object has a key twice. The
// JSON standard (RFC 8259) does not forbid a repeated key; ParseJson keeps the last value.
absl::StatusOr<nlohmann::json> ParseJsonOfUniqueKeys(std::string_view text, std::string_view what);

// Returns `text` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
std::string QuoteJson(std::string_view text);

}  // namespace quire::base
