#pragma once

// Unicode case mapping outside ASCII, as in Python's str.upper() and str.lower().

#include <cstdint>
#include <string>
#include <vector>

namespace quire::jinja {

// Each character c of first, first + stride, ..., last maps to c + delta. The ranges are sorted.
struct CaseRange {
  char32_t first;
  char32_t last;
  int32_t stride;
  int32_t delta;
};

// A letter whose uppercase form has several letters: ß becomes SS.
struct CaseSpecial {
  char32_t from;
  std::u32string to;
};

const std::vector<CaseRange>& UpperRanges();
const std::vector<CaseRange>& LowerRanges();
const std::vector<CaseSpecial>& UpperSpecials();

}  // namespace quire::jinja
