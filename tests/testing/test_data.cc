#include "tests/testing/test_data.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"

#include "base/check.h"
#include "base/strings.h"

namespace quire::testing {
namespace {

constexpr std::array<std::string_view, 10> kParts = {
    "bad-input/blns", "bad-input/json-test-suite", "bad-input/utf8",
    "chat-templates", "models/stories260K-gguf",   "models/stories260K-hf",
    "text/udhr",      "tokenizers/gguf-vocab",     "tokenizers/hf-json",
    "traces/mooncake"};
constexpr std::array<std::string_view, 1> kFetchedModels = {"smollm2-135m-instruct"};

std::string Environment(const char* name, const std::string& otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

std::filesystem::path Root() { return Environment("QUIRE_TEST_DATA", "../shared/data"); }

bool IsThere(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace

std::optional<std::string> TestDataPath(std::string_view relative) {
  const auto part = std::find_if(kParts.begin(), kParts.end(), [&](std::string_view name) {
    return relative == name || relative.starts_with(std::string(name) + "/");
  });
  QUIRE_CHECK(part != kParts.end()) << relative << " is in no part of the test material";
  if (!IsThere(Root() / *part)) return std::nullopt;
  return (Root() / relative).string();
}

std::optional<std::string> FetchedModelPath(std::string_view name) {
  QUIRE_CHECK(std::find(kFetchedModels.begin(), kFetchedModels.end(), name) != kFetchedModels.end())
      << name << " is not listed";
  const std::string cache = Environment("XDG_CACHE_HOME", Environment("HOME", "") + "/.cache");
  const std::filesystem::path path =
      std::filesystem::path(Environment("QUIRE_MODEL_DIR", cache + "/quire/models")) /
      absl::StrCat(base::ToAbsl(name), ".gguf");
  if (!IsThere(path)) return std::nullopt;
  return path.string();
}

std::vector<std::string> AbsentTestData() {
  std::vector<std::string> absent;
  for (const std::string_view part : kParts) {
    if (!TestDataPath(part)) absent.emplace_back(part);
  }
  for (const std::string_view model : kFetchedModels) {
    if (!FetchedModelPath(model)) absent.emplace_back(model);
  }
  return absent;
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
