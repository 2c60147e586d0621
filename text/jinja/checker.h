#pragma once

// Finds the errors of a template that can be found before the first rendering.

#include "absl/status/status.h"

#include "text/jinja/ast.h"

namespace quire::jinja {

// Binds each filter and test to its function. Returns an InvalidArgument error that names the first
// unsupported filter, test or method, and its line. So an unsupported template fails when the model
// loads, not during a chat.
absl::Status Check(Body& body);

}  // namespace quire::jinja
