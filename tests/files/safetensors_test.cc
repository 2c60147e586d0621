#include "files/safetensors.h"

#include <ostream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/files/aligned_bytes.h"
#include "tests/files/safetensors_writer.h"

namespace quire::files {
namespace {

using ::quire::testing::AlignedBytes;
using ::quire::testing::Raw;
using ::quire::testing::Safetensors;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Data(size_t size) { return std::string(size, '\x3f'); }

TEST(SafetensorsTest, ReadsTensorsInFileOrder) {
  const AlignedBytes file(Safetensors(R"({"__metadata__": {"format": "pt"},
      "b": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
      "a": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
      "ids": {"dtype": "I64", "shape": [1, 2], "data_offsets": [32, 48]},
      "none": {"dtype": "F16", "shape": [0, 7], "data_offsets": [48, 48]},
      "one": {"dtype": "F16", "shape": [], "data_offsets": [48, 50]}})",
                                      Data(50)));
  const auto contents = ParseSafetensors(file.span(), "f");
  ASSERT_TRUE(contents.ok()) << contents.status();
  ASSERT_EQ(contents->tensors.size(), 4u);
  EXPECT_EQ(contents->tensors[0].name, "b");
  EXPECT_EQ(contents->tensors[0].type, kernels::WeightType::kF32);
  EXPECT_THAT(contents->tensors[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(contents->tensors[0].bytes.size(), 24u);
  EXPECT_EQ(contents->tensors[1].name, "a");
  EXPECT_EQ(contents->tensors[1].type, kernels::WeightType::kBF16);
  EXPECT_EQ(contents->tensors[1].bytes.data(), contents->tensors[0].bytes.data() + 24);
  EXPECT_EQ(contents->tensors[2].name, "none");
  EXPECT_EQ(contents->tensors[3].name, "one");
  ASSERT_EQ(contents->unusable_tensors.size(), 1u);
  EXPECT_EQ(contents->unusable_tensors[0].type_name, "I64");
  EXPECT_EQ(contents->unusable_tensors[0].num_bytes, 16);
}

// Scales of e4m3 may begin at any byte.
TEST(SafetensorsTest, ReadsCodesOfE4M3AndScalesBehindThem) {
  const AlignedBytes file(Safetensors(R"({
      "w": {"dtype": "F8_E4M3", "shape": [1, 3], "data_offsets": [0, 3]},
      "w_scale": {"dtype": "F32", "shape": [], "data_offsets": [3, 7]},
      "e5m2": {"dtype": "F8_E5M2", "shape": [2], "data_offsets": [7, 9]}})",
                                      Data(9)));
  const auto contents = ParseSafetensors(file.span(), "f");
  ASSERT_TRUE(contents.ok()) << contents.status();
  ASSERT_EQ(contents->tensors.size(), 2u);
  EXPECT_EQ(contents->tensors[0].type, kernels::WeightType::kF8E4M3);
  EXPECT_EQ(contents->tensors[0].bytes.size(), 3u);
  EXPECT_EQ(contents->tensors[1].bytes.data(), contents->tensors[0].bytes.data() + 3);
  ASSERT_EQ(contents->unusable_tensors.size(), 1u);
  EXPECT_EQ(contents->unusable_tensors[0].type_name, "F8_E5M2");
}

struct BadFile {
  std::string name;
  std::string bytes;
  std::string field;
  std::string problem;

  friend void PrintTo(const BadFile& file, std::ostream* out) { *out << file.name; }
};

// Returns a file with one tensor `t` and 32 bytes of data.
std::string OneTensor(const std::string& tensor) {
  return Safetensors("{\"t\": " + tensor + "}", Data(32));
}

// Returns a list of `count` ones, such as "1, 1, 1".
std::string Ones(int count) {
  std::string list = "1";
  for (int i = 1; i < count; ++i) list += ", 1";
  return list;
}

std::string Two(const std::string& first, const std::string& second) {
  return Safetensors(R"({"a": {"dtype": "F32", "shape": [4], "data_offsets": )" + first +
                         R"(}, "b": {"dtype": "F32", "shape": [4], "data_offsets": )" + second +
                         "}}",
                     Data(32));
}

const BadFile kBadFiles[] = {
    {"E4M3CutShort",
     OneTensor(R"({"dtype": "F8_E4M3", "shape": [3, 11], "data_offsets": [0, 32]})"), "tensor t",
     "fits the 32 bytes of data, got F8_E4M3 [3, 11]"},
    {"Empty", "", "header length", "want 8 bytes, got 0"},
    {"LengthCutShort", "1234567", "header length", "truncated"},
    {"LengthHuge", Raw<uint64_t>(~uint64_t{0}) + "{}", "header length", "got 18446744073709551615"},
    {"LengthPastTheEnd", Raw<uint64_t>(3) + "{}", "header length", "want 2 to 2 bytes, got 3"},
    {"LengthZero", Raw<uint64_t>(0) + "{}", "header length", "got 0"},
    {"NotJson", Safetensors("{\"a\": ", ""), "header", "not valid JSON"},
    {"NotAnObject", Safetensors("[1, 2]", ""), "header", "want a JSON object"},
    {"NestedTooDeep",
     Safetensors("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}", ""),
     "header", "deeper"},
    {"InvalidUtf8", Safetensors("{\"\xff\": 1}", ""), "header", "not valid JSON"},
    {"MetadataOfNumbers", Safetensors(R"({"__metadata__": {"a": 1}})", ""), "__metadata__",
     "strings"},
    {"TensorIsANumber", OneTensor("7"), "tensor t", "want an object, got 7"},
    {"NoDtype", OneTensor(R"({"shape": [8], "data_offsets": [0, 32]})"), "tensor t", "dtype"},
    {"UnknownDtype", OneTensor(R"({"dtype": "Q9", "shape": [8], "data_offsets": [0, 32]})"),
     "tensor t", "want one of F32, F16, BF16"},
    {"NoShape", OneTensor(R"({"dtype": "F32", "data_offsets": [0, 32]})"), "tensor t", "shape"},
    {"NegativeDim", OneTensor(R"({"dtype": "F32", "shape": [-8], "data_offsets": [0, 32]})"),
     "tensor t", "got -8"},
    {"FractionalDim", OneTensor(R"({"dtype": "F32", "shape": [8.0], "data_offsets": [0, 32]})"),
     "tensor t", "got 8.0"},
    {"DimBeyondInt64",
     OneTensor(R"({"dtype": "F32", "shape": [18446744073709551615], "data_offsets": [0, 32]})"),
     "tensor t", "shape"},
    {"ShapeOverflows",
     OneTensor(R"({"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 32]})"),
     "tensor t", "want a shape that fits"},
    {"ShapeTooSmall", OneTensor(R"({"dtype": "F32", "shape": [7], "data_offsets": [0, 32]})"),
     "tensor t", "want 28 bytes, which is F32 [7], got 32"},
    {"EmptyWithData", OneTensor(R"({"dtype": "F32", "shape": [0, 9], "data_offsets": [0, 32]})"),
     "tensor t", "want 0 bytes"},
    {"NoOffsets", OneTensor(R"({"dtype": "F32", "shape": [8]})"), "tensor t", "got nothing"},
    {"OneOffset", OneTensor(R"({"dtype": "F32", "shape": [8], "data_offsets": [0]})"), "tensor t",
     "data_offsets"},
    {"OffsetsSwapped", OneTensor(R"({"dtype": "F32", "shape": [8], "data_offsets": [32, 0]})"),
     "tensor t", "begin <= end"},
    {"OffsetPastTheEnd", OneTensor(R"({"dtype": "F32", "shape": [9], "data_offsets": [0, 36]})"),
     "tensor t", "begin <= end <= 32"},
    {"NegativeOffset", OneTensor(R"({"dtype": "F32", "shape": [8], "data_offsets": [-4, 28]})"),
     "tensor t", "data_offsets"},
    {"Overlap", Two("[0, 16]", "[8, 24]"), "tensor b", "overlaps"},
    {"NameTwice",
     Safetensors(R"({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
                     "a": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}})",
                 Data(32)),
     "header", "want each key once, got \"a\" twice"},
    {"TooManyDims",
     OneTensor(R"({"dtype": "F32", "shape": [)" + Ones(100000) + R"(], "data_offsets": [0, 32]})"),
     "tensor t", "shape: want at most 64 dimensions, got 100000"},
    {"SameData", Two("[0, 16]", "[0, 16]"), "tensor", "overlaps"},
    {"Gap",
     Safetensors(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                            "b": {"dtype": "F32", "shape": [4], "data_offsets": [16, 32]}})",
                 Data(32)),
     "tensor b", "there is a gap"},
    {"DataLeftOver", Two("[0, 16]", "[16, 32]") + "x", "data", "want 32 bytes"},
    {"DataCutShort", Two("[0, 16]", "[16, 32]").substr(0, 150), "tensor b", "data_offsets"},
};

class BadSafetensorsTest : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadSafetensorsTest, IsRefusedByFileAndField) {
  const AlignedBytes file(GetParam().bytes);
  const auto contents = ParseSafetensors(file.span(), "bad.safetensors");
  ASSERT_EQ(contents.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(contents.status().message()),
              AllOf(HasSubstr("bad.safetensors: "), HasSubstr(GetParam().field),
                    HasSubstr(GetParam().problem)));
  EXPECT_LT(contents.status().message().size(), 1000u) << "one line for a terminal";
}

INSTANTIATE_TEST_SUITE_P(All, BadSafetensorsTest, ::testing::ValuesIn(kBadFiles),
                         [](const auto& test) { return test.param.name; });

TEST(SafetensorsIndexTest, ListsEachShardOnce) {
  const auto index = ParseSafetensorsIndex(
      R"({"metadata": {"total_size": 1}, "weight_map": {"a": "m-2.safetensors", "b": "m-1.safetensors",
          "c": "m-2.safetensors"}})",
      "index.json");
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_THAT(index->Shards(), ElementsAre("m-1.safetensors", "m-2.safetensors"));
  EXPECT_EQ(index->shard_of_tensor.at("b"), "m-1.safetensors");
}

TEST(SafetensorsIndexTest, RefusesShardsOutsideTheDirectory) {
  for (const std::string shard :
       {"../other.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..", "", "model.bin",
        ".hidden.safetensors", "a\\u0000.safetensors"}) {
    const auto index =
        ParseSafetensorsIndex(R"({"weight_map": {"a": ")" + shard + "\"}}", "index.json");
    EXPECT_THAT(std::string(index.status().message()), HasSubstr("beside the index")) << shard;
  }
  EXPECT_THAT(
      std::string(
          ParseSafetensorsIndex(R"({"weight_map": {"a": 1}})", "index.json").status().message()),
      HasSubstr("got 1"));
}

TEST(SafetensorsIndexTest, RefusesWhatIsNoIndex) {
  for (const std::string text : {"", "[]", "{}", R"({"weight_map": 3})", R"({"weight_map": {}})"}) {
    EXPECT_EQ(ParseSafetensorsIndex(text, "index.json").status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

}  // namespace
}  // namespace quire::files
