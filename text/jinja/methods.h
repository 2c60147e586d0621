#pragma once

// The tables of methods, one for each Python type.

#include <span>
#include <string_view>

#include "absl/status/statusor.h"

#include "text/jinja/call.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/value.h"

namespace quire::jinja {

using MethodFunction = absl::StatusOr<Value> (*)(Evaluator& evaluator, const Value& self,
                                                 const CallArguments& arguments);
struct Method {
  std::string_view name;
  MethodFunction function;
};

std::span<const Method> StringMethods();
std::span<const Method> SequenceMethods();  // list and tuple
std::span<const Method> ListMethods();      // list only
std::span<const Method> DictMethods();
std::span<const Method> LoopMethods();
std::span<const Method> CycleMethods();

// The methods of Python's list and dict that the sandbox forbids, because they change the value.
std::span<const std::string_view> ForbiddenListMethods();
std::span<const std::string_view> ForbiddenDictMethods();
// The methods of Python's str that this engine does not support.
std::span<const std::string_view> LackingStringMethods();

}  // namespace quire::jinja
