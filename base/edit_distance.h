#pragma once

// The distance of a mistyped name from a known one.

#include <cstddef>
#include <string_view>

namespace quire::base {

// Levenshtein distance: the fewest characters that must be inserted, dropped or replaced to turn
// `a` into `b`.
size_t EditDistance(std::string_view a, std::string_view b);

}  // namespace quire::base
