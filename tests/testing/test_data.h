#pragma once

// Optional test material: real models, tokenizers and hostile input that the project does not
// carry. Looked for in $QUIRE_TEST_DATA, then in ../shared/data beside the checkout.

#include <optional>
#include <string>
#include <string_view>

namespace quire::testing {

// The path of `relative` in the test material; nothing when it is not there.
std::optional<std::string> TestDataPath(std::string_view relative);

// The path of `relative` inside this repository's tests/, which is always there.
std::string TestSourcePath(std::string_view relative);

// A whole file; empty when it cannot be read.
std::string ReadFile(const std::string& path);

}  // namespace quire::testing

// First line of a test that needs the material: assigns its path or skips, saying why.
#define QUIRE_TEST_DATA_OR_SKIP(variable, relative)                               \
  const auto variable##_found_ = ::quire::testing::TestDataPath(relative);        \
  if (!variable##_found_) GTEST_SKIP() << "test material absent: " << (relative); \
  const std::string& variable = *variable##_found_
