#pragma once

// What can be known to fail before the first rendering.

#include "absl/status/status.h"

#include "engine/tokenizer/jinja/ast.h"

namespace quire::engine::jinja {

// Binds each filter and test to its function. InvalidArgument names the first filter, test or
// method that we lack, with its line; the original would fail on it at some chat, we do when the
// model loads.
absl::Status Check(Body& body);

}  // namespace quire::engine::jinja
