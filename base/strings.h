#pragma once

// Conversions between std and Abseil strings, and a hash of strings. Debian builds Abseil with its
// own string_view, which does not convert to or from std::string_view. Our interfaces use
// std::string_view, which these functions convert for calls to Abseil.

#include <functional>
#include <string_view>

#include "absl/strings/string_view.h"

namespace quire::base {

inline absl::string_view ToAbsl(std::string_view s) {
  return absl::string_view(s.data(), s.size());
}
inline std::string_view ToStd(absl::string_view s) { return std::string_view(s.data(), s.size()); }

// A hash for maps with std::string keys, in which a string_view can be looked up. Such a map also
// needs std::equal_to<>.
struct StringHash : std::hash<std::string_view> {
  using is_transparent = void;
};

}  // namespace quire::base
