// Tests CgroupAvailableMemory(), which returns the memory that a process may still use under the
// limit of its container. The tests write the cgroup files in the format of the Linux kernel.

#include "kernels/cpu/cgroup.h"

#include <filesystem>
#include <string>

#include "gtest/gtest.h"

#include "tests/testing/temp_directory.h"

namespace quire::kernels::cpu {
namespace {

class CgroupTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + "/" + name).parent_path());
    directory_.Write(name, text);
  }

  const testing::TempDirectory directory_;
  const std::string& root_ = directory_.path();
};

TEST_F(CgroupTest, WithoutALimitThereIsNone) {
  EXPECT_EQ(CgroupAvailableMemory(root_), 0);
  Write("memory.max", "max\n");
  Write("memory.current", "1000\n");
  Write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("memory/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(CgroupAvailableMemory(root_), 0);
}

TEST_F(CgroupTest, FilesInMemoryAreAvailable) {
  Write("memory.max", "1000000\n");
  Write("memory.current", "700000\n");
  EXPECT_EQ(CgroupAvailableMemory(root_), 300000);
  Write("memory.stat", "anon 200000\nfile 500000\ninactive_file 400000\nactive_file 90000\n");
  EXPECT_EQ(CgroupAvailableMemory(root_), 790000);
}

TEST_F(CgroupTest, TheFirstVersionCountsItsChildrenToo) {
  Write("memory/memory.limit_in_bytes", "1000000\n");
  Write("memory/memory.usage_in_bytes", "700000\n");
  Write("memory/memory.stat",
        "inactive_file 1\nactive_file 2\ntotal_inactive_file 400000\ntotal_active_file 90000\n");
  EXPECT_EQ(CgroupAvailableMemory(root_), 790000);
}

TEST_F(CgroupTest, AFullGroupHasAByteLeft) {
  Write("memory.max", "1000\n");
  Write("memory.current", "2000\n");
  EXPECT_EQ(CgroupAvailableMemory(root_), 1);  // 0 would mean that there is no limit
}

}  // namespace
}  // namespace quire::kernels::cpu
