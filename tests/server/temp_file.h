#pragma once

#include <fstream>
#include <string>
#include <string_view>
#include <unistd.h>

#include "gtest/gtest.h"

namespace quire::testing {

// Writes `contents` to a file of the running test's own, in this process alone, and returns its
// path.
inline std::string WriteTempFile(std::string_view name, std::string_view contents) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string path = ::testing::TempDir() + "quire_" + std::to_string(getpid()) + "_" +
                     test->test_suite_name() + "_" + test->name() + "_" + std::string(name);
  std::ofstream(path, std::ios::binary) << contents;
  return path;
}

}  // namespace quire::testing
