#pragma once

// How far a mistyped name is from a known one.

#include <cstddef>
#include <string_view>

namespace quire::base {

// Levenshtein's: the fewest characters inserted, dropped or replaced that turn `a` into `b`.
size_t EditDistance(std::string_view a, std::string_view b);

}  // namespace quire::base
