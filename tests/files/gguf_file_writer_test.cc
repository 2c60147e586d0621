#include "files/gguf_file_writer.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "files/model_files.h"
#include "tests/testing/temp_directory.h"
#include "tests/testing/test_data.h"

namespace quire::files {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::TempDirectory;

std::vector<std::byte> Counting(int64_t size) {
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

GgufValues SomeValues() {
  GgufValues values;
  values.String("general.architecture", "llama");
  values.Int("small", 7);
  values.Int("large", int64_t{1} << 40);
  values.Int("negative", -3);
  values.Float("third", 1.0 / 3.0);
  values.Bool("yes", true);
  values.Ints("ints", std::vector<int32_t>{1, -2, 3});
  values.Floats("floats", std::vector<float>{0.5f, -0.25f});
  values.Strings("strings", std::vector<std::string>{"", "a b", "\xE2\x96\x81"});
  return values;
}

void ExpectSomeValues(const GgufMetadata& metadata) {
  EXPECT_EQ(*metadata.String("general.architecture"), "llama");
  EXPECT_EQ(*metadata.Int("small"), 7);
  EXPECT_EQ(metadata.Find("small")->type, GgufType::kUint32);
  EXPECT_EQ(*metadata.Int("large"), int64_t{1} << 40);
  EXPECT_EQ(*metadata.Int("negative"), -3);
  EXPECT_EQ(*metadata.Float("third"), double{1.0f / 3.0f});
  EXPECT_TRUE(*metadata.Bool("yes"));
  EXPECT_THAT(*metadata.Ints("ints"), ElementsAre(1, -2, 3));
  EXPECT_THAT(*metadata.Floats("floats"), ElementsAre(0.5, -0.25));
  EXPECT_THAT(*metadata.Strings("strings"), ElementsAre("", "a b", "\xE2\x96\x81"));
}

TEST(GgufValuesTest, AViewIsWhatAFileWouldSay) {
  const GgufValues values = SomeValues();
  const absl::StatusOr<GgufMetadata> view = values.View("here");
  ASSERT_TRUE(view.ok()) << view.status();
  ExpectSomeValues(*view);
  EXPECT_EQ(view->file(), "here");
}

TEST(GgufValuesTest, AppendedOnesComeBehindAndOnlyOnce) {
  GgufValues values, more;
  values.Int("a", 1);
  more.Int("b", 2);
  values.Append(more);
  EXPECT_EQ(values.size(), 2);
  EXPECT_EQ(values.View("")->values()[1].key, "b");
  values.Append(more);
  EXPECT_EQ(values.View("here").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GgufFileWriterTest, WhatWasWrittenIsRead) {
  const TempDirectory directory;
  const std::string path = directory.path() + "/model.gguf";
  const std::vector<GgufTensor> tensors = {{"vector", kernels::WeightType::kF32, {3}},
                                           {"matrix", kernels::WeightType::kQ8_0, {2, 64}},
                                           {"halves", kernels::WeightType::kF16, {2, 3, 5}}};
  const auto file = GgufFileWriter::Create(path, SomeValues(), tensors);
  ASSERT_TRUE(file.ok()) << file.status();
  for (const GgufTensor& tensor : tensors) {
    const std::vector<std::byte> bytes = Counting(tensor.num_bytes());
    ASSERT_TRUE((*file)->Append(std::span(bytes).subspan(0, 5)).ok());
    ASSERT_TRUE((*file)->Append(std::span(bytes).subspan(5)).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE((*file)->Finish().ok());
  EXPECT_EQ((*file)->file_bytes(), static_cast<int64_t>(std::filesystem::file_size(path)));

  const absl::StatusOr<OpenedModel> model = OpenModelFiles(path);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->gguf_version, 3);
  ExpectSomeValues(*model->gguf);
  ASSERT_EQ(model->weights->tensors().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& read = model->weights->tensors()[i];
    EXPECT_EQ(read.name, tensors[i].name);
    EXPECT_EQ(read.type, tensors[i].type);
    EXPECT_EQ(read.shape, tensors[i].shape);
    const std::vector<std::byte> want = Counting(tensors[i].num_bytes());
    EXPECT_TRUE(std::ranges::equal(read.bytes, want)) << read.name;
  }
}

TEST(GgufFileWriterTest, TooManyOrTooFewBytesAreNotAFile) {
  const TempDirectory directory;
  const std::string path = directory.Write("model.gguf", "old");
  {
    const auto file =
        GgufFileWriter::Create(path, GgufValues(), {{"vector", kernels::WeightType::kF32, {3}}});
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_FALSE((*file)->Append(Counting(13)).ok());
    EXPECT_TRUE((*file)->Append(Counting(8)).ok());
    const absl::Status status = (*file)->Finish();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr("vector"));
  }
  EXPECT_EQ(testing::ReadFile(path), "old");
  EXPECT_EQ(directory.NumFiles(), 1);
}

TEST(GgufFileWriterTest, ErrorsOfTheSystemNameTheFile) {
  const auto nowhere = GgufFileWriter::Create("/nowhere/model.gguf", GgufValues(), {});
  EXPECT_EQ(nowhere.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(nowhere.status().message()), StartsWith("/nowhere/model.gguf."));
}

}  // namespace
}  // namespace quire::files
