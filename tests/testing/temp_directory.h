#pragma once

// A temporary directory for one test. The destructor removes it.

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

#include "gtest/gtest.h"

namespace quire::testing {

class TempDirectory {
 public:
  TempDirectory() {
    std::string pattern = ::testing::TempDir() + "quire_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::string& path() const { return path_; }
  int64_t NumFiles() const { return std::distance(std::filesystem::directory_iterator(path_), {}); }
  // Writes a file and returns its path.
  std::string Write(std::string_view name, std::string_view contents) const {
    std::string file = path_ + "/" + std::string(name);
    std::ofstream(file, std::ios::binary) << contents;
    return file;
  }

 private:
  std::string path_;
};

}  // namespace quire::testing
