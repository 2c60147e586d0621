#include "files/gguf.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "files/ggml_types.h"
#include "kernels/quant/weight_view.h"
#include "tests/files/aligned_bytes.h"
#include "tests/files/gguf_writer.h"
#include "tests/testing/test_data.h"

namespace quire::files {
namespace {

using ::quire::testing::AlignedBytes;
using ::quire::testing::GgufWriter;
using ::quire::testing::Raw;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

TEST(GgufTest, ReadsEveryValueType) {
  GgufWriter writer;
  writer.Add("u8", GgufType::kUint8, Raw<uint8_t>(200))
      .Add("i8", GgufType::kInt8, Raw<int8_t>(-100));
  writer.Add("u16", GgufType::kUint16, Raw<uint16_t>(60000))
      .Add("i16", GgufType::kInt16, Raw<int16_t>(-30000));
  writer.Add("u32", GgufType::kUint32, Raw<uint32_t>(4000000000))
      .Add("i32", GgufType::kInt32, Raw<int32_t>(-7));
  writer.Add("u64", GgufType::kUint64, Raw<uint64_t>(1) + "")
      .Add("i64", GgufType::kInt64, Raw<int64_t>(-1));
  writer.Add("f32", GgufType::kFloat32, Raw(0.5F)).Add("f64", GgufType::kFloat64, Raw(0.25));
  writer.Bool("yes", true).Bool("no", false).String("text", "hello").String("empty", "");
  writer.Strings("words", {"a", "", "ccc"}).Array<int32_t>("numbers", GgufType::kInt32, {1, -2, 3});
  writer.Array<float>("floats", GgufType::kFloat32, {0.5F, 2.0F})
      .Array<uint8_t>("none", GgufType::kUint8, {});
  const AlignedBytes file(writer.Build());
  const auto contents = ParseGguf(file.span(), "f.gguf");
  ASSERT_TRUE(contents.ok()) << contents.status();
  const GgufMetadata& metadata = contents->metadata;

  EXPECT_EQ(metadata.Int("u8").value(), 200);
  EXPECT_EQ(metadata.Int("i8").value(), -100);
  EXPECT_EQ(metadata.Int("u16").value(), 60000);
  EXPECT_EQ(metadata.Int("i16").value(), -30000);
  EXPECT_EQ(metadata.Int("u32").value(), 4000000000);
  EXPECT_EQ(metadata.Int("i32").value(), -7);
  EXPECT_EQ(metadata.Int("u64").value(), 1);
  EXPECT_EQ(metadata.Int("i64").value(), -1);
  EXPECT_EQ(metadata.Float("f32").value(), 0.5);
  EXPECT_EQ(metadata.Float("f64").value(), 0.25);
  EXPECT_EQ(metadata.Float("u8").value(), 200.0);
  EXPECT_TRUE(metadata.Bool("yes").value());
  EXPECT_FALSE(metadata.Bool("no").value());
  EXPECT_EQ(metadata.String("text").value(), "hello");
  EXPECT_EQ(metadata.String("empty").value(), "");
  EXPECT_THAT(metadata.Strings("words").value(), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(metadata.Ints("numbers").value(), ElementsAre(1, -2, 3));
  EXPECT_THAT(metadata.Floats("floats").value(), ElementsAre(0.5, 2.0));
  EXPECT_TRUE(metadata.Ints("none").value().empty());
  EXPECT_EQ(metadata.values().size(), 18u);
  EXPECT_EQ(contents->version, 3u);
  EXPECT_TRUE(contents->tensors.empty());
}

TEST(GgufTest, AccessorsSayWhatTheyWanted) {
  GgufWriter writer;
  writer.U32("number", 7).String("text", "x").Strings("words", {"a"});
  writer.Add("huge", GgufType::kUint64, Raw<uint64_t>(kHuge));
  const AlignedBytes file(writer.Build());
  const auto contents = ParseGguf(file.span(), "f.gguf");
  ASSERT_TRUE(contents.ok()) << contents.status();
  const GgufMetadata& metadata = contents->metadata;

  EXPECT_EQ(metadata.Int("absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(metadata.IntOr("absent", 5).value(), 5);
  EXPECT_EQ(metadata.IntOr("text", 5).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(metadata.Int("text").status().message(), HasSubstr("f.gguf: text: want an integer"));
  EXPECT_THAT(metadata.Int("huge").status().message(), HasSubstr("2^63"));
  EXPECT_THAT(metadata.String("number").status().message(), HasSubstr("want a string, got uint32"));
  EXPECT_THAT(metadata.Int("words").status().message(), HasSubstr("got an array of 1 string"));
  EXPECT_THAT(metadata.Ints("words").status().message(), HasSubstr("want an array of integers"));
  EXPECT_FALSE(metadata.Strings("number").ok());
  EXPECT_FALSE(metadata.Bool("number").ok());
  EXPECT_FALSE(metadata.Float("text").ok());
  EXPECT_FALSE(metadata.Floats("words").ok());
}

TEST(GgufTest, ReadsTensorsWithTheirShapeReversed) {
  GgufWriter writer;
  writer.version = 2;
  writer.Tensor(
      {.name = "a", .dims = {3, 2}, .data = Raw(1.0F) + Raw(2.0F) + std::string(16, '\0')});
  writer.Tensor({.name = "q", .type = 8, .dims = {64}, .data = std::string(68, 'q')});
  writer.Tensor({.name = "odd", .type = 10, .dims = {256}, .data = std::string(84, 'k')});
  const AlignedBytes file(writer.Build());
  const auto contents = ParseGguf(file.span(), "f.gguf");
  ASSERT_TRUE(contents.ok()) << contents.status();
  ASSERT_EQ(contents->tensors.size(), 2u);
  const TensorInfo& a = contents->tensors[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.type, kernels::WeightType::kF32);
  EXPECT_THAT(a.shape, ElementsAre(2, 3));
  ASSERT_EQ(a.bytes.size(), 24u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.bytes.data()) % 32, 0u);
  float second = 0;
  std::memcpy(&second, a.bytes.data() + 4, sizeof(second));
  EXPECT_EQ(second, 2.0F);
  EXPECT_EQ(contents->tensors[1].bytes.size(), 68u);
  EXPECT_EQ(contents->tensors[1].bytes[0], std::byte{'q'});
  ASSERT_EQ(contents->unusable_tensors.size(), 1u);
  EXPECT_EQ(contents->unusable_tensors[0].type_name, "Q2_K");
}

// Tests that a GGUF file can hold tensors of all 11 weight types, and that the kernels have the
// same names and block sizes.
TEST(GgufTest, OpensEveryWeightType) {
  GgufWriter writer;
  int num_types = 0;
  for (uint32_t id = 0; id < 64; ++id) {
    const GgmlType* type = FindGgmlType(id);
    if (type == nullptr || !type->weight_type) continue;
    ++num_types;
    const kernels::WeightTypeTraits& traits = kernels::Traits(*type->weight_type);
    EXPECT_EQ(traits.name, type->name);
    EXPECT_EQ(traits.block_elements, type->block_elements) << type->name;
    EXPECT_EQ(traits.block_bytes, type->block_bytes) << type->name;
    const auto rows = static_cast<size_t>(512 / type->block_elements) * 3;
    writer.Tensor({.name = absl::StrCat("t", id),
                   .type = id,
                   .dims = {512, 3},
                   .data = std::string(rows * static_cast<size_t>(type->block_bytes), 'x')});
  }
  EXPECT_EQ(num_types, 11);
  const AlignedBytes file(writer.Build());
  const auto contents = ParseGguf(file.span(), "f.gguf");
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->tensors.size(), 11u);
  EXPECT_TRUE(contents->unusable_tensors.empty());
}

TEST(GgufTest, NamesInErrorsAreEscaped) {
  GgufWriter writer;
  writer.U32("bad\n\x01key", 1).U32("bad\n\x01key", 1);
  const AlignedBytes file(writer.Build());
  EXPECT_THAT(ParseGguf(file.span(), "f").status().message(), HasSubstr("bad\\n\\x01key"));
}

// Tests that a prefix of a valid file is refused.
TEST(GgufTest, NoPrefixIsTakenForTheWhole) {
  const std::string whole = testing::TinyLlamaGguf().Build();
  for (size_t size = 0; size < whole.size(); size += size < 3000 ? 1 : 97) {
    const AlignedBytes file(std::string_view(whole).substr(0, size));
    ASSERT_FALSE(ParseGguf(file.span(), "f").ok()) << size << " of " << whole.size() << " bytes";
  }
}

struct Vocabulary {
  std::string name;
  std::string architecture;
  size_t num_tokens;
  size_t num_merges;
};

class PublishedVocabularyTest : public ::testing::TestWithParam<Vocabulary> {};

TEST_P(PublishedVocabularyTest, IsReadWhole) {
  const Vocabulary& want = GetParam();
  const std::string path =
      *testing::TestDataPath("tokenizers/gguf-vocab/ggml-vocab-" + want.name + ".gguf");
  const AlignedBytes file(testing::ReadFile(path));
  const auto contents = ParseGguf(file.span(), path);
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->metadata.String("general.architecture").value(), want.architecture);
  const auto tokens = contents->metadata.Strings("tokenizer.ggml.tokens");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->size(), want.num_tokens);
  EXPECT_EQ(contents->metadata.Ints("tokenizer.ggml.token_type").value().size(), want.num_tokens);
  if (want.num_merges != 0) {
    EXPECT_EQ(contents->metadata.Strings("tokenizer.ggml.merges").value().size(), want.num_merges);
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PublishedVocabularyTest);
INSTANTIATE_TEST_SUITE_P(Gguf, PublishedVocabularyTest,
                         ::testing::ValuesIn(testing::IfTestData<Vocabulary>(
                             {"tokenizers/gguf-vocab"}, {{"falcon", "falcon", 65024, 64784},
                                                         {"gpt-2", "gpt2", 50257, 50000},
                                                         {"gpt-neox", "gptneox", 50432, 50009},
                                                         {"mpt", "mpt", 50432, 50009},
                                                         {"phi-3", "phi3", 32064, 0}})),
                         [](const auto& test) { return test.param.architecture; });

}  // namespace
}  // namespace quire::files
