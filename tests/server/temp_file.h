#pragma once

#include <string>
#include <string_view>

#include "gtest/gtest.h"

#include "tests/testing/temp_directory.h"

namespace quire::testing {

// Writes `contents` to a file of the running test's own and returns its path. The file is deleted
// when the process ends.
inline std::string WriteTempFile(std::string_view name, std::string_view contents) {
  static const TempDirectory directory;
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return directory.Write(std::string(test->test_suite_name()) + "_" + test->name() + "_" +
                             std::string(name),
                         contents);
}

}  // namespace quire::testing
