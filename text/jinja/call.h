#pragma once

// The arguments of a call at run time, and the binding of arguments to parameter names.

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "text/jinja/value.h"

namespace quire::jinja {

struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

// Returns one value for each of `names`; nothing for a parameter that is not given. The first
// `required` parameters must be given. A parameter with an empty name can be given only by
// position. Returns InvalidArgument if arguments are missing, unknown, repeated or too many; the
// message begins with `what`.
absl::StatusOr<std::vector<std::optional<Value>>> Bind(
    std::string_view what, const CallArguments& arguments,
    std::initializer_list<std::string_view> names, size_t required = 0);

// These functions convert a value from Bind() to one type, and return `if_absent` for an absent
// value. For a value of another type they return InvalidArgument; the message begins with `what`.
absl::StatusOr<int64_t> IntArgument(std::string_view what, const std::optional<Value>& value,
                                    int64_t if_absent);
absl::StatusOr<std::string> StringArgument(std::string_view what, const std::optional<Value>& value,
                                           std::string_view if_absent);

}  // namespace quire::jinja
