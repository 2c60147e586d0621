#pragma once

// Files that people write: configuration, certificates, lists of callers.

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace quire::base {

inline constexpr size_t kMaxSmallFile = size_t{16} << 20;  // bytes

// Reads a whole file. Returns InvalidArgument when the file cannot be read, has more than
// kMaxSmallFile bytes, or is not a regular file. (A pipe or a device might never end.) The message
// begins with the path.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

}  // namespace quire::base
