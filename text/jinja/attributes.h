#pragma once

// object.name, object[index], and the methods of strings, lists and dicts.

#include <string_view>

#include "absl/status/statusor.h"

#include "text/jinja/call.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/value.h"

namespace quire::jinja {

// Looks for a method before a key, like Jinja2's dot; undefined when there is neither.
// InvalidArgument when `object` is undefined, or has a method of that name in Python that we lack.
absl::StatusOr<Value> GetAttribute(Evaluator& evaluator, const Value& object,
                                   std::string_view name);

// Looks for an item before a method, like Jinja2's brackets.
absl::StatusOr<Value> GetItem(Evaluator& evaluator, const Value& object, const Value& index);

absl::StatusOr<Value> CallMethod(Evaluator& evaluator, const BoundMethod& method,
                                 const CallArguments& arguments);

// True if any type has a method of this name, allowed or forbidden by the sandbox.
bool IsKnownMethod(std::string_view name);

}  // namespace quire::jinja
