#pragma once

#include <string>
#include <string_view>

#include "tests/testing/temp_directory.h"

namespace quire::testing {

// Writes `contents` to a file in this process's own directory, and returns the file's path. A later
// file of the same name replaces the file. All files are deleted when the process ends.
inline std::string WriteTempFile(std::string_view name, std::string_view contents) {
  static const TempDirectory directory;
  return directory.Write(name, contents);
}

}  // namespace quire::testing
