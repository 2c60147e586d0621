#pragma once

// Filters: x | name(arguments).

#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "text/jinja/call.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/value.h"

namespace quire::jinja {

struct Filter {
  std::string_view name;
  absl::StatusOr<Value> (*function)(Evaluator& evaluator, const Value& input,
                                    const CallArguments& arguments);
};

// Returns null when there is no filter of that name.
const Filter* FindFilter(std::string_view name);

// The groups of filters, one file each.
std::span<const Filter> StringFilters();
std::span<const Filter> NumberFilters();
std::span<const Filter> SequenceFilters();
std::span<const Filter> SelectFilters();

// Returns the value at `path` ("a.b" or 0) within `item`, for map(attribute=) and sort(attribute=).
absl::StatusOr<Value> LookUpPath(Evaluator& evaluator, const Value& item, const Value& path,
                                 const std::optional<Value>& if_undefined = std::nullopt);

}  // namespace quire::jinja
