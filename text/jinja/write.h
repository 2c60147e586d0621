#pragma once

// Writes values as text, as Python's str(), repr() and json.dumps() do.

#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "text/jinja/value.h"

namespace quire::jinja {

// Returns the text that {{ value }} prints. Returns InvalidArgument for a range, and for a
// generator or a function, for which Python would print an address.
absl::StatusOr<TracedText> ToText(const Value& value, Budget& budget);
absl::StatusOr<TracedText> ToRepr(const Value& value, Budget& budget);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<TracedText> indent;  // absent: all on one line
  TracedText item_separator = ", ";
  TracedText key_separator = ": ";
};
absl::StatusOr<TracedText> ToJson(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace quire::jinja
