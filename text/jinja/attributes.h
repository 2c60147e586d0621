#pragma once

// Evaluates object.name, object[index], and calls of methods.

#include <string_view>

#include "absl/status/statusor.h"

#include "text/jinja/call.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/value.h"

namespace quire::jinja {

// Returns object.name. As in Jinja2, a method or attribute is preferred to a key of a dict. The
// result is undefined when neither exists. Returns InvalidArgument when `object` is undefined, or
// when `object` is a string and `name` is a method of Python's str that this engine does not
// support.
absl::StatusOr<Value> GetAttribute(Evaluator& evaluator, const Value& object,
                                   std::string_view name);

// Returns object[index]. As in Jinja2, an item is preferred to a method or attribute.
absl::StatusOr<Value> GetItem(Evaluator& evaluator, const Value& object, const Value& index);

absl::StatusOr<Value> CallMethod(Evaluator& evaluator, const BoundMethod& method,
                                 const CallArguments& arguments);

// Returns true if some type has a method of this name, even if the sandbox forbids the method.
bool IsKnownMethod(std::string_view name);

}  // namespace quire::jinja
