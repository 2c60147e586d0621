#pragma once

// Makes a name from an untrusted file safe for one line of a terminal: cuts off a long name and
// escapes control characters.

#include <string>
#include <string_view>

#include "absl/strings/escaping.h"

#include "base/strings.h"

namespace quire::files {

inline std::string Printable(std::string_view text) {
  constexpr size_t kMaxBytes = 96;
  std::string shown = absl::Utf8SafeCHexEscape(base::ToAbsl(text.substr(0, kMaxBytes)));
  if (text.size() > kMaxBytes) shown += "...";
  return shown;
}

}  // namespace quire::files
