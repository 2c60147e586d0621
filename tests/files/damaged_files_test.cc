// Damages valid files at random. Parsing them gives an error or a model, never a crash, a hang or a
// read outside the file. AddressSanitizer sees such a read because each allocation has exactly the
// size of its file.

#include <algorithm>
#include <filesystem>
#include <rapidcheck.h>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/files/aligned_bytes.h"
#include "tests/files/exercise_parsers.h"
#include "tests/files/gguf_writer.h"
#include "tests/files/safetensors_writer.h"
#include "tests/testing/test_data.h"

namespace quire::testing {
namespace {

constexpr int kFilesPerCheck = 20;  // files in each of RapidCheck's 100 cases

std::string WholeGguf() {
  GgufWriter writer = TinyLlamaGguf();
  writer.Array<float>("tokenizer.ggml.scores", files::GgufType::kFloat32, {0, 0, 0, -1, -2});
  writer.Bool("tokenizer.ggml.add_bos_token", true)
      .Add("wide", files::GgufType::kUint64, Raw<uint64_t>(9));
  writer.Tensor(
      {.name = "output.weight", .type = 8, .dims = {32, 2}, .data = std::string(68, '\1')});
  return writer.Build();
}

std::string WholeSafetensors() {
  return Safetensors(R"({"__metadata__": {"format": "pt"},
      "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
      "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
      "c": {"dtype": "I64", "shape": [1, 2], "data_offsets": [32, 48]}})",
                     std::string(48, '\x3f'));
}

std::string WholeConfig() {
  return R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 64,
      "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
      "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 64}, "weight_map": {"a": "b.safetensors"}})";
}

// Changes one to four of the first `header_bytes` bytes of `file`. In one case of four, also cuts
// off the end of the file.
std::string Damaged(std::string file, size_t header_bytes) {
  const int num_changes = *rc::gen::inRange(1, 5);
  for (int i = 0; i < num_changes; ++i) {
    const auto at = *rc::gen::inRange<size_t>(0, header_bytes);
    // Bytes that make lengths and counts absurd are drawn more often than other bytes.
    file[at] = static_cast<char>(*rc::gen::oneOf(
        rc::gen::arbitrary<uint8_t>(), rc::gen::element<uint8_t>(0, 1, 0x7F, 0x80, 0xFF)));
  }
  if (*rc::gen::inRange(0, 4) == 0) file.resize(*rc::gen::inRange<size_t>(0, file.size()));
  return file;
}

TEST(DamagedFilesTest, Gguf) {
  const std::string whole = WholeGguf();
  ASSERT_TRUE(ExerciseGguf(AlignedBytes(whole).span()));
  const size_t header_bytes = whole.find(std::string(64, '\0'));
  int refused = 0;
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i < kFilesPerCheck; ++i) {
      refused += ExerciseGguf(AlignedBytes(Damaged(whole, header_bytes)).span()) ? 0 : 1;
    }
  }));
  EXPECT_GT(refused, 0);
}

TEST(DamagedFilesTest, GgufInParts) {
  const auto part = [](uint32_t number, const std::string& tensor) {
    GgufWriter writer = number == 0 ? TinyLlamaGguf() : GgufWriter();
    return writer.U32("split.no", number)
        .U32("split.count", 2)
        .U32("split.tensors.count", 22)
        .Zeros(tensor, {2, 8})
        .Build();
  };
  const std::string whole[] = {part(0, "a"), part(1, "b")};
  const auto exercise = [](const std::string& first, const std::string& second) {
    const AlignedBytes files[] = {AlignedBytes(first), AlignedBytes(second)};
    return ExerciseGgufParts(std::vector{files[0].span(), files[1].span()});
  };
  ASSERT_TRUE(exercise(whole[0], whole[1]));
  const size_t header_bytes = whole[0].find(std::string(64, '\0'));
  int refused = 0;
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i < kFilesPerCheck; ++i) {
      refused += exercise(Damaged(whole[0], header_bytes), whole[1]) ? 0 : 1;
      refused += exercise(whole[0], Damaged(whole[1], whole[1].size() - 64)) ? 0 : 1;
    }
  }));
  EXPECT_GT(refused, 0);
}

TEST(DamagedFilesTest, Safetensors) {
  const std::string whole = WholeSafetensors();
  ASSERT_TRUE(ExerciseSafetensors(AlignedBytes(whole).span()));
  int refused = 0;
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i < kFilesPerCheck; ++i) {
      refused +=
          ExerciseSafetensors(AlignedBytes(Damaged(whole, whole.size() - 48)).span()) ? 0 : 1;
    }
  }));
  EXPECT_GT(refused, 0);
}

TEST(DamagedFilesTest, Json) {
  const std::string whole = WholeConfig();
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i < kFilesPerCheck; ++i) ExerciseJson(Damaged(whole, whole.size()));
  }));
}

// Parses texts that are not JSON as the header of a safetensors file. JSONTestSuite has more of
// each kind.
TEST(DamagedFilesTest, WhatIsNoJsonIsRefusedInOneShortLine) {
  std::vector<std::pair<std::string, std::string>> texts;
  for (const std::string text : {"",
                                 " ",
                                 "[1 true]",
                                 "[1,]",
                                 "[,1]",
                                 "[",
                                 "]",
                                 "{",
                                 "{\"a\":1,}",
                                 "{\"a\" 1}",
                                 "{a: 1}",
                                 "{\"a\": 01}",
                                 "{\"a\": 1e}",
                                 "{\"a\": NaN}",
                                 "{\"a\": -}",
                                 "{\"a\": tru}",
                                 "{'a': 1}",
                                 "{\"a\": \"\n\"}",
                                 "{\"a\": \"\\x00\"}",
                                 "{\"a\": \"\\ud8\"}",
                                 "{\"a\": 1} {}",
                                 "{\"\xff\": 1}",
                                 "\xef\xbb\xbf{",
                                 "{\"a\": \"\xed\xa0\x80\"}"}) {
    texts.emplace_back(text, text);
  }
  texts.emplace_back("100,000 brackets", std::string(100'000, '['));
  texts.emplace_back("an open string of 100,000 bytes", "{\"" + std::string(100'000, 'a'));
  if (const auto suite = TestDataPath("bad-input/json-test-suite/test_parsing")) {
    const size_t ours = texts.size();
    for (const auto& entry : std::filesystem::directory_iterator(*suite)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("n_")) texts.emplace_back(name, ReadFile(entry.path()));
    }
    EXPECT_GT(texts.size(), ours + 150);
  }
  for (const auto& [name, text] : texts) {
    SCOPED_TRACE(name);
    const AlignedBytes file(Safetensors(text, ""));
    const absl::Status status = files::ParseSafetensors(file.span(), "f").status();
    EXPECT_FALSE(status.ok());
    EXPECT_LT(status.message().size(), 1000u);
    EXPECT_EQ(std::ranges::count(status.message(), '\n'), 0);
  }
}

// Reads JSON of any type as config.json. The test checks only that nothing crashes.
TEST(DamagedFilesTest, ConfigsOfEveryJsonType) {
  for (const char* text : {"null", "3", "[]", "\"x\"", "{}", R"({"architectures": {}})",
                           R"({"architectures": ["LlamaForCausalLM"], "rope_scaling": []})"}) {
    ExerciseJson(text);
  }
}

}  // namespace
}  // namespace quire::testing
