#pragma once

// Optional test material: real models, tokenizers and hostile input that are not part of the
// project. Tests look for it in $QUIRE_TEST_DATA. If this variable is not set, they look in
// ../shared/data, relative to the root of the checkout, where the tests run.
//
// Tests take the project's own files, and the material beside them where it is there. A test about
// real files alone is a suite whose parameters come from IfTestData(). So no test skips for want of
// material but TestDataTest, which names all that is absent.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::testing {

// Returns the path of `relative` in the test material, or nothing when its part is not there. A
// part is a folder that is there with all its files, or not at all. Aborts if no part that
// test_data.cc lists has the file.
std::optional<std::string> TestDataPath(std::string_view relative);

// Returns the path of a model that scripts/get_model.sh has fetched, or nothing.
std::optional<std::string> FetchedModelPath(std::string_view name);

// Returns `values` if all `parts` of the test material are there, and otherwise none.
template <typename T>
std::vector<T> IfTestData(const std::vector<std::string>& parts, std::vector<T> values) {
  for (const std::string& part : parts) {
    if (!TestDataPath(part)) return {};
  }
  return values;
}

// Returns the parts of the test material, and the fetched models, that are not there.
std::vector<std::string> AbsentTestData();

// Returns the path of `relative` in the tests/ directory of this repository, which is always there.
std::string TestSourcePath(std::string_view relative);

// Returns the content of a file, or an empty string when the file cannot be read.
std::string ReadFile(const std::string& path);

}  // namespace quire::testing
