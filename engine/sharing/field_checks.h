#pragma once

// Checks of the fields that named prefixes and sessions have in common.

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"

namespace quire::engine {

inline constexpr size_t kMostDisplayNameBytes = 128;
inline constexpr size_t kMostRequestIdBytes = 36;

// Returns InvalidArgument, which begins with the name of the field, if `text` has more than `most`
// bytes.
absl::Status CheckLength(const char* field, std::string_view text, size_t most);

}  // namespace quire::engine
