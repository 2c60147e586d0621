#pragma once

// JSON from files and clients. nlohmann::json throws; this is the one place that catches.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace quire::base {

inline constexpr int kMaxJsonDepth = 128;

// `what` names the input in the error ("tokenizer.json"). InvalidArgument with the byte position
// when `text` is not one JSON value, or nests deeper than `max_depth`.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view what,
                                         int max_depth = kMaxJsonDepth);

// InvalidArgument also when the outermost object has a key twice, which JSON leaves to its reader
// and ParseJson answers with the last one.
absl::StatusOr<nlohmann::json> ParseJsonOfUniqueKeys(std::string_view text, std::string_view what);

// `text` as a JSON string with its quotes; bytes that are no UTF-8 become U+FFFD.
std::string QuoteJson(std::string_view text);

}  // namespace quire::base
