#pragma once

// Parses template source into a tree.

#include <string_view>

#include "absl/status/statusor.h"

#include "text/jinja/ast.h"

namespace quire::jinja {

// InvalidArgument begins with "line N: ": for bad syntax, and for an unsupported tag, which it
// names.
absl::StatusOr<Body> Parse(std::string_view source);

}  // namespace quire::jinja
