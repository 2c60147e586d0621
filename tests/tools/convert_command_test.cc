#include "tools/convert_command.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/testing/temp_directory.h"
#include "tests/testing/test_data.h"
#include "tests/tools/run_command.h"

namespace quire::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string BundledModel() { return testing::TestSourcePath("../models/quire-stories"); }

TEST(ConvertCommandTest, SaysWhatTheFileHolds) {
  const testing::TempDirectory directory;
  const std::string path = directory.path() + "/stories.gguf";
  const Result result = RunConvert({BundledModel(), path, "--type=q4_k", "--threads", "2"});
  EXPECT_EQ(result.status, 0) << result.err;
  // On a slow machine, stderr may also hold progress.
  EXPECT_THAT(result.err, Not(HasSubstr("warning")));
  EXPECT_THAT(result.out, StartsWith(path + ": "));
  EXPECT_THAT(result.out, HasSubstr("Q4_K 79."));
  EXPECT_THAT(result.out, HasSubstr(" bits a weight, relative error "));
}

TEST(ConvertCommandTest, AFileThatIsThereIsReplacedOnlyIfToldTo) {
  const testing::TempDirectory directory;
  const std::string path = directory.Write("stories.gguf", "old");
  const Result refused = RunConvert({BundledModel(), path});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("--overwrite"));
  EXPECT_EQ(testing::ReadFile(path), "old");
  EXPECT_EQ(RunConvert({BundledModel(), path, "--overwrite"}).status, 0);
  EXPECT_EQ(testing::ReadFile(path).substr(0, 4), "GGUF");
}

TEST(ConvertCommandTest, ArgumentsThatMakeNoSense) {
  EXPECT_EQ(RunConvert({}).status, 2);
  EXPECT_THAT(RunConvert({"model"}).err, HasSubstr("want MODEL and OUTPUT"));
  const Result type = RunConvert({"model", "out.gguf", "--type", "q9"});
  EXPECT_EQ(type.status, 2);
  EXPECT_THAT(type.err, HasSubstr("--type: want one of f32, f16, bf16, q8_0, q4_0, q4_k"));
  const Result reader = RunConvert({"model", "out.gguf", "--for", "vllm"});
  EXPECT_EQ(reader.status, 2);
  EXPECT_THAT(reader.err, HasSubstr("--for: want all or quire, got \"vllm\""));
  EXPECT_EQ(RunConvert({"--help"}).status, 0);
}

TEST(ConvertCommandTest, WhatIsNoDirectoryIsRefused) {
  const testing::TempDirectory directory;
  const std::string path = directory.path() + "/stories.gguf";
  EXPECT_EQ(RunConvert({directory.path() + "/nothing", path}).status, 1);
  ASSERT_EQ(RunConvert({BundledModel(), path}).status, 0);
  const Result again = RunConvert({path, directory.path() + "/again.gguf"});
  EXPECT_EQ(again.status, 1);
  EXPECT_THAT(again.err, HasSubstr("want a Hugging Face directory"));
}

}  // namespace
}  // namespace quire::tools
