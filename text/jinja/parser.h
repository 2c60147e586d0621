#pragma once

// Parses template source into a tree.

#include <string_view>

#include "absl/status/statusor.h"

#include "text/jinja/ast.h"

namespace quire::jinja {

// Returns the statements of `source`. Returns InvalidArgument for bad syntax and for an unsupported
// tag; the message begins with "line N: ".
absl::StatusOr<Body> Parse(std::string_view source);

}  // namespace quire::jinja
