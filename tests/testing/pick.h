#pragma once

// Random choices that a RapidCheck property makes while it runs, for operations that depend on
// earlier operations. When RapidCheck shrinks a case, the choices move towards `low`.

#include <rapidcheck.h>
#include <vector>

namespace quire::testing {

// Returns a uniform number in low .. high. RapidCheck keeps numbers small in the first cases of a
// property; Pick is uniform there too.
inline int Pick(int low, int high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
}

// Returns one of `values`, or -1 when `values` is empty.
inline int PickOf(const std::vector<int>& values) {
  return values.empty() ? -1 : values[Pick(0, static_cast<int>(values.size()) - 1)];
}

}  // namespace quire::testing
