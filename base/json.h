#pragma once

// JSON from files and clients. nlohmann::json throws; this is the one place that catches.

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

}  // namespace quire::base
