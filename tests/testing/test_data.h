#pragma once

// Optional test material: real models, tokenizers and hostile input that are not part of the
// project. Tests look for it in $QUIRE_TEST_DATA. If this variable is not set, they look in
// ../shared/data, relative to the root of the checkout, where the tests run.

#include <optional>
#include <string>
#include <string_view>

namespace quire::testing {

// Returns the path of `relative` in the test material, or nothing when it is not there.
std::optional<std::string> TestDataPath(std::string_view relative);

// Returns the path of `relative` in the tests/ directory of this repository, which is always there.
std::string TestSourcePath(std::string_view relative);

// Returns the content of a file, or an empty string when the file cannot be read.
std::string ReadFile(const std::string& path);

}  // namespace quire::testing

// The first line of a test that needs test material. Assigns the path of the material to
// `variable`, or skips the test and says why.
#define QUIRE_TEST_DATA_OR_SKIP(variable, relative)                               \
  const auto variable##_found_ = ::quire::testing::TestDataPath(relative);        \
  if (!variable##_found_) GTEST_SKIP() << "test material absent: " << (relative); \
  const std::string& variable = *variable##_found_
