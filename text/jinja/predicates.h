#pragma once

// Jinja2's tests: x is name(arguments).

#include <string_view>

#include "absl/status/statusor.h"

#include "text/jinja/call.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/value.h"

namespace quire::jinja {

struct Test {
  std::string_view name;
  absl::StatusOr<bool> (*function)(Evaluator& evaluator, const Value& input,
                                   const CallArguments& arguments);
};

// Returns null when there is no test of that name.
const Test* FindTest(std::string_view name);

}  // namespace quire::jinja
