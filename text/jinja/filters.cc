#include "text/jinja/filters.h"

#include <charconv>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "text/jinja/attributes.h"

namespace quire::jinja {

const Filter* FindFilter(std::string_view name) {
  for (const auto filters :
       {StringFilters(), NumberFilters(), SequenceFilters(), SelectFilters()}) {
    for (const Filter& filter : filters) {
      if (filter.name == name) return &filter;
    }
  }
  return nullptr;
}

absl::StatusOr<Value> LookUpPath(Evaluator& evaluator, const Value& item, const Value& path,
                                 const std::optional<Value>& if_undefined) {
  Value value = item;
  std::string_view rest;
  if (path.is_string()) {
    rest = path.str();
  } else if (!path.is_integral()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("an attribute is a string, not %s", path.TypeName()));
  }
  while (true) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    int64_t index = 0;
    const auto number = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = !part.empty() && number.ec == std::errc() &&
                          number.ptr == part.data() + part.size() && part[0] != '-';
    const Value key = path.is_integral() ? path
                      : is_index         ? Value::Int(index)
                                         : Value::String(std::string(part));
    ASSIGN_OR_RETURN(value, GetItem(evaluator, value, key));
    if (value.is_undefined() && if_undefined) value = *if_undefined;
    if (dot == std::string_view::npos || path.is_integral()) return value;
    rest.remove_prefix(dot + 1);
  }
}

}  // namespace quire::jinja
