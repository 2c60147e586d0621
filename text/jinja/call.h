#pragma once

// Arguments of a call at run time, and their binding to parameter names.

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

// One value per name of `names`; nothing for a name that is not given, but the first `required`
// must be. An empty name can be given only by position. InvalidArgument, naming `what`, for too
// many, unknown or repeated arguments.
absl::StatusOr<std::vector<std::optional<Value>>> Bind(
    std::string_view what, const CallArguments& arguments,
    std::initializer_list<std::string_view> names, size_t required = 0);

// A value from Bind as one type. InvalidArgument, naming `what`, when it has another type.
absl::StatusOr<int64_t> IntArgument(std::string_view what, const std::optional<Value>& value,
                                    int64_t if_absent);
absl::StatusOr<std::string> StringArgument(std::string_view what, const std::optional<Value>& value,
                                           std::string_view if_absent);

}  // namespace quire::jinja
