#pragma once

// Finds errors that can be known before the first rendering.

#include "absl/status/status.h"

#include "text/jinja/ast.h"

namespace quire::jinja {

// Binds each filter and test to its function. InvalidArgument names the first filter, test or
// method that we lack, with its line; Jinja2 would fail on it at some chat, we fail when the model
// loads.
absl::Status Check(Body& body);

}  // namespace quire::jinja
