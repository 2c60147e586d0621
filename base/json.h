#pragma once

// JSON from files and clients. nlohmann::json throws; this is the one place that catches.

#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace quire::base {

// `what` names the input in the error ("tokenizer.json"). InvalidArgument with the byte position
// when `text` is not one JSON value, or nests deeper than `max_depth`.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view what,
                                         int max_depth = 128);

}  // namespace quire::base
