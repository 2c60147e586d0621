// Tests GGUF files in which one field is wrong. The error must name the file, the field and the
// problem.

#include <cstdint>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "files/gguf.h"
#include "tests/files/aligned_bytes.h"
#include "tests/files/gguf_writer.h"

namespace quire::files {
namespace {

using ::quire::testing::AlignedBytes;
using ::quire::testing::GgufWriter;
using ::quire::testing::Raw;
using ::quire::testing::RawString;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

struct BadFile {
  std::string name;
  std::string bytes;
  std::string field;    // the field that the error names
  std::string problem;  // what the error says about the field

  friend void PrintTo(const BadFile& file, std::ostream* out) { *out << file.name; }
};

struct Header {
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<uint64_t> tensor_count = std::nullopt;
  std::optional<uint64_t> value_count = std::nullopt;
};

GgufWriter WithHeader(const Header& header) {
  GgufWriter writer;
  writer.magic = header.magic;
  writer.version = header.version;
  writer.tensor_count = header.tensor_count;
  writer.value_count = header.value_count;
  return writer;
}

std::string OneValue(const Header& header) {
  return WithHeader(header).U32("some.rather.long.key", 1).Build();
}

// Returns a file of one tensor. The data of the tensor is long enough to be read as one more tensor
// header.
std::string OneTensor(const Header& header) {
  return WithHeader(header).Zeros("first", {64}).Build();
}

std::string WithTensor(testing::GgufTensorSpec tensor) {
  GgufWriter writer;
  writer.Zeros("first", {8});
  return writer.Tensor(std::move(tensor)).Build();
}

std::string WithValue(uint32_t type, const std::string& raw) {
  return GgufWriter().Add("some.key", type, raw).Build();
}

const BadFile kBadFiles[] = {
    {"Empty", std::string(), "magic", "want \"GGUF\""},
    {"OldFormat", OneValue(Header{.magic = "tjgg"}), "magic", "got \"tjgg\""},
    {"Version1", OneValue(Header{.version = 1}), "version", "got 1"},
    {"Version4", OneValue(Header{.version = 4}), "version", "got 4"},
    {"BigEndian", OneValue(Header{.version = 0x03000000}), "version", "big-endian"},
    {"HeaderCutShort", OneValue(Header{}).substr(0, 20), "metadata_kv_count", "truncated"},
    {"TensorCount", OneValue(Header{.tensor_count = kHuge}), "tensor_count", "want at most 1"},
    {"TensorCountOneMore", OneTensor(Header{.tensor_count = 2}), "tensor 1: name", "got 0"},
    {"ValueCount", OneValue(Header{.value_count = kHuge}), "metadata_kv_count", "want at most"},
    {"ValueCountOneMore", OneValue(Header{.value_count = 2}), "key 1", "truncated"},
    {"KeyEmpty", GgufWriter().U32("", 1).Build() + std::string(16, 'x'), "key 0",
     "want a length of 1"},
    {"KeyTooLong", GgufWriter().U32(std::string(70000, 'k'), 1).Build(), "key 0", "got 70000"},
    {"KeyPastTheEnd",
     std::string("GGUF") + Raw<uint32_t>(3) + Raw<uint64_t>(0) + Raw<uint64_t>(1) +
         Raw<uint64_t>(60000) + "abcdefgh",
     "key 0", "want 60000 bytes"},
    {"KeyTwice", GgufWriter().U32("k", 1).U32("k", 2).Build(), "key k", "got it twice"},
    {"ValueType", WithValue(13, Raw<uint64_t>(0)), "some.key", "got 13"},
    {"ArrayType", WithValue(9, Raw<uint32_t>(99) + Raw<uint64_t>(0)), "some.key", "got 99"},
    {"ArrayOfArrays", WithValue(9, Raw<uint32_t>(9) + Raw<uint64_t>(1) + Raw<uint64_t>(0)),
     "some.key", "array of arrays"},
    {"ArrayLength", WithValue(9, Raw<uint32_t>(0) + Raw<uint64_t>(kHuge)), "some.key: array length",
     "want at most 0"},
    {"ArrayLengthOverflows",
     WithValue(9, Raw<uint32_t>(10) + Raw<uint64_t>(kHuge / 8 + 2) + Raw<uint64_t>(0)),
     "some.key: array length", "want at most 1"},
    {"StringArrayLength", WithValue(9, Raw<uint32_t>(8) + Raw<uint64_t>(1000000) + RawString("a")),
     "some.key: array length", "want at most 1"},
    {"StringLength", WithValue(8, Raw<uint64_t>(kHuge)), "some.key", "truncated"},
    {"StringInArrayLength",
     WithValue(9, Raw<uint32_t>(8) + Raw<uint64_t>(2) + RawString("abcdefgh") + Raw<uint64_t>(9)),
     "some.key", "want 9 bytes"},
    {"NumberCutShort", WithValue(10, Raw<uint32_t>(0)), "some.key", "want 8 bytes"},
    {"BoolOfTwo", WithValue(7, Raw<uint8_t>(2)), "some.key", "want a bool of 0 or 1, got 2"},
    {"AlignmentZero", GgufWriter().U32("general.alignment", 0).Build(), "general.alignment",
     "got 0"},
    {"AlignmentOdd", GgufWriter().U32("general.alignment", 24).Build(), "general.alignment",
     "got 24"},
    {"AlignmentHuge", GgufWriter().U32("general.alignment", 1U << 31).Build(), "general.alignment",
     "power of two"},
    {"AlignmentText", GgufWriter().String("general.alignment", "32").Build(), "general.alignment",
     "got string"},
    {"TensorNameEmpty", WithTensor({.name = "", .dims = {8}, .data = std::string(32, '\0')}),
     "tensor 1: name", "want a length"},
    {"TensorTwice", WithTensor({.name = "first", .dims = {8}, .data = std::string(32, '\0')}),
     "tensor first", "got it twice"},
    {"NoDims", WithTensor({.name = "t", .dims = {}, .data = std::string(32, '\0')}), "tensor t",
     "want 1 to 4 dimensions, got 0"},
    {"FiveDims", WithTensor({.name = "t", .dims = {1, 1, 1, 1, 8}, .data = std::string(32, '\0')}),
     "tensor t", "got 5"},
    {"DimZero", WithTensor({.name = "t", .dims = {8, 0}, .data = std::string(32, '\0')}),
     "tensor t", "want dimension 1"},
    {"DimNegative", WithTensor({.name = "t", .dims = {kHuge}, .data = std::string(32, '\0')}),
     "tensor t", "want dimension 0"},
    {"DimsOverflow",
     WithTensor({.name = "t", .dims = {1ULL << 32, 1ULL << 32}, .data = std::string(32, '\0')}),
     "tensor t", "want dimension 1"},
    {"BytesOverflow",
     WithTensor({.name = "t", .dims = {1ULL << 62}, .data = std::string(32, '\0')}), "tensor t",
     "inside the file"},
    {"BlockDivisibility",
     WithTensor({.name = "t", .type = 2, .dims = {40, 4}, .data = std::string(90, '\0')}),
     "tensor t", "Q4_0 blocks of 32 weights, got rows of 40"},
    {"TypeUnknown",
     WithTensor({.name = "t", .type = 77, .dims = {8}, .data = std::string(32, '\0')}), "tensor t",
     "got type 77; computed with are F32, F16"},
    {"TypeGivenUp",
     WithTensor({.name = "t", .type = 4, .dims = {32}, .data = std::string(32, '\0')}), "tensor t",
     "got type 4"},
    {"OffsetUnaligned",
     WithTensor({.name = "t", .dims = {8}, .data = std::string(64, '\0'), .offset = 36}),
     "tensor t", "multiple of 32, got 36"},
    {"OffsetPastTheEnd",
     WithTensor({.name = "t", .dims = {8}, .data = std::string(32, '\0'), .offset = 1ULL << 40}),
     "tensor t", "offset inside"},
    {"OffsetOverflows",
     WithTensor({.name = "t", .dims = {8}, .data = std::string(32, '\0'), .offset = kHuge - 31}),
     "tensor t", "offset inside"},
    {"DataPastTheEnd", WithTensor({.name = "t", .dims = {8}, .data = std::string(31, '\0')}),
     "tensor t", "truncated"},
    {"DataOverlaps",
     WithTensor({.name = "t", .dims = {8}, .data = std::string(32, '\0'), .offset = 0}), "tensor",
     "overlap with"},
    {"TensorNameTooLong",
     WithTensor({.name = std::string(65, 'x'), .dims = {8}, .data = std::string(32, '\0')}),
     "tensor 1: name", "want a length of 1 to 64 bytes, got 65"},
    {"ArchitectureIsANumber", GgufWriter().U32("general.architecture", 7).Build(),
     "general.architecture", "want a string"},
    {"NoTensorData",
     WithTensor({.name = "t", .dims = {8}, .data = std::string(32, '\0')}).substr(0, 94),
     "tensor first", "truncated"},
};

class BadGgufTest : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadGgufTest, IsRefusedByFileAndField) {
  const AlignedBytes file(GetParam().bytes);
  const auto contents = ParseGguf(file.span(), "bad.gguf");
  ASSERT_EQ(contents.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(contents.status().message()),
      AllOf(HasSubstr("bad.gguf: "), HasSubstr(GetParam().field), HasSubstr(GetParam().problem)));
}

INSTANTIATE_TEST_SUITE_P(All, BadGgufTest, ::testing::ValuesIn(kBadFiles),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace quire::files
