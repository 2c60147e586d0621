#pragma once

#include <string>
#include <string_view>

#include "tests/testing/temp_directory.h"

namespace quire::testing {

// Writes `contents` to a file of this process's own and returns its path. A later file of that name
// replaces it. The files are deleted when the process ends.
inline std::string WriteTempFile(std::string_view name, std::string_view contents) {
  static const TempDirectory directory;
  return directory.Write(name, contents);
}

}  // namespace quire::testing
