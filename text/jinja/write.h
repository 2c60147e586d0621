#pragma once

// Writes values as text: str(), repr() and json.dumps() of Python.

#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "text/jinja/value.h"

namespace quire::jinja {

// The text that {{ value }} prints. InvalidArgument for a function or a generator, whose text would
// be an address.
absl::StatusOr<std::string> ToText(const Value& value, Budget& budget);
absl::StatusOr<std::string> ToRepr(const Value& value, Budget& budget);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // none: one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
absl::StatusOr<std::string> ToJson(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace quire::jinja
