#pragma once

// Writes values as text, as Python's str(), repr() and json.dumps() do.

#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "text/jinja/value.h"

namespace quire::jinja {

// Returns the text that {{ value }} prints. Returns InvalidArgument for a range, and for a
// generator or a function, for which Python would print an address.
absl::StatusOr<std::string> ToText(const Value& value, Budget& budget);
absl::StatusOr<std::string> ToRepr(const Value& value, Budget& budget);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // absent: all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
absl::StatusOr<std::string> ToJson(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace quire::jinja
