#pragma once

// Files that a person writes: configuration, certificates, who may call.

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace quire::base {

inline constexpr size_t kMaxSmallFile = size_t{16} << 20;  // bytes

// The whole of a regular file. InvalidArgument, which begins with the path: it cannot be read, is a
// directory, a pipe or a device (which might never end), or has more than kMaxSmallFile bytes.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

}  // namespace quire::base
