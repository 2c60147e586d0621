#pragma once

// Template source to a tree.

#include <string_view>

#include "absl/status/statusor.h"

#include "engine/tokenizer/jinja/ast.h"

namespace quire::engine::jinja {

// InvalidArgument with "line N: " for bad syntax, and for a tag that we lack, by its name.
absl::StatusOr<Body> Parse(std::string_view source);

}  // namespace quire::engine::jinja
