#pragma once

// Finds the known name that is nearest to a mistyped name.

#include <cstddef>
#include <span>
#include <string_view>

namespace quire::base {

// Returns the Levenshtein distance: the fewest characters that must be inserted, dropped or
// replaced to turn `a` into `b`.
size_t EditDistance(std::string_view a, std::string_view b);

// Returns the known name nearest to the mistyped `name`; among equally near names, the first in
// `known`. Returns "" if the distance is more than 2, more than 1 + name.size() / 3, or at least
// name.size().
std::string_view NearestName(std::string_view name, std::span<const std::string_view> known);

}  // namespace quire::base
