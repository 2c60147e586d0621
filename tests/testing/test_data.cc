#include "tests/testing/test_data.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace quire::testing {

std::optional<std::string> TestDataPath(std::string_view relative) {
  const char* root = std::getenv("QUIRE_TEST_DATA");
  const std::filesystem::path path =
      (root != nullptr ? std::filesystem::path(root) : std::filesystem::path("../shared/data")) /
      relative;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  return path.string();
}

std::string TestSourcePath(std::string_view relative) {
  return (std::filesystem::path("tests") / relative).string();
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace quire::testing
