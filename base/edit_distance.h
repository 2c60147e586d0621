#pragma once

// The distance of a mistyped name from a known one.

#include <cstddef>
#include <span>
#include <string_view>

namespace quire::base {

// Levenshtein distance: the fewest characters that must be inserted, dropped or replaced to turn
// `a` into `b`.
size_t EditDistance(std::string_view a, std::string_view b);

// Returns the first of the `known` names that are nearest to a mistyped one. Returns "" when none
// is near: when more than 1 + a third of the name's characters would have to be edited, or all.
std::string_view NearestName(std::string_view name, std::span<const std::string_view> known);

}  // namespace quire::base
