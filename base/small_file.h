#pragma once

// Files that people write: configuration, certificates, lists of callers.

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace quire::base {

inline constexpr size_t kMaxSmallFile = size_t{16} << 20;  // bytes

// Reads a whole regular file. InvalidArgument when it cannot be read, is a directory, a pipe or a
// device (which might never end), or has more than kMaxSmallFile bytes. The message begins with the
// path.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

}  // namespace quire::base
