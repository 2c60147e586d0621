#include "text/jinja/call.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace quire::jinja {

absl::StatusOr<std::vector<std::optional<Value>>> Bind(
    std::string_view what, const CallArguments& arguments,
    std::initializer_list<std::string_view> names, size_t required) {
  std::vector<std::optional<Value>> bound(names.size());
  if (arguments.positional.size() > names.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: at most %d arguments, got %d", what,
                                                      names.size(), arguments.positional.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) bound[i] = arguments.positional[i];
  for (const auto& [name, value] : arguments.keyword) {
    const auto* found = std::find(names.begin(), names.end(), name);
    if (found == names.end() || name.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: unknown argument '%s'", what, name));
    }
    std::optional<Value>& slot = bound[static_cast<size_t>(found - names.begin())];
    if (slot)
      return absl::InvalidArgumentError(absl::StrFormat("%s: argument '%s' twice", what, name));
    slot = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!bound[i]) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: wants at least %d arguments", what, required));
    }
  }
  return bound;
}

absl::StatusOr<int64_t> IntArgument(std::string_view what, const std::optional<Value>& value,
                                    int64_t if_absent) {
  if (!value) return if_absent;
  if (value->is_integral()) return value->as_int();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: want an integer, got %s", what, value->TypeName()));
}

absl::StatusOr<std::string> StringArgument(std::string_view what, const std::optional<Value>& value,
                                           std::string_view if_absent) {
  if (!value) return std::string(if_absent);
  if (value->is_string()) return value->str();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: want a string, got %s", what, value->TypeName()));
}

}  // namespace quire::jinja
