// Tests tokenizers with real vocabularies on real texts. The expected ids come from llama.cpp's
// test vectors and from the reference implementations. The vocabularies and texts are not part of
// the project. Without them, these tests are skipped.

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_split.h"

#include "base/strings.h"
#include "engine/frontend/tokenizer_loader.h"
#include "files/model_files.h"
#include "tests/testing/test_data.h"
#include "tests/text/tokenizer/goldens.h"

namespace quire::engine {
namespace {

using base::ToAbsl;
using nlohmann::json;
using quire::testing::ReadFile;
using text::testing::Encoded;
using text::testing::IdsOf;
using text::testing::Joined;
using text::testing::ParseFile;
using text::testing::ReadTestJson;

std::unique_ptr<text::Tokenizer> TokenizerOfModel(const std::string& path) {
  const auto model = files::OpenModelFiles(path);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return nullptr;
  auto tokenizer = LoadTokenizer(*model);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// Encodes every case in the file `vectors`.inp and expects the ids in `vectors`.out, which has one
// line of ids for each case.
void ExpectVectors(const text::Tokenizer& tokenizer, const std::string& vectors) {
  const std::string input = ReadFile(vectors + ".inp");
  const std::string output = ReadFile(vectors + ".out");
  const std::vector<std::string> texts = absl::StrSplit(input, "\n__ggml_vocab_test__\n");
  const std::vector<std::string> lines = absl::StrSplit(output, '\n');
  ASSERT_EQ(texts.size(), 47u);
  ASSERT_GE(lines.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto tokens = Encoded(tokenizer, texts[i], {.kind = text::InputKind::kPart});
    std::string line = lines[i];
    while (line.starts_with(' ')) line.erase(0, 1);
    while (line.ends_with(' ')) line.pop_back();
    EXPECT_EQ(Joined(tokens), line) << "case " << i << ": " << texts[i];
  }
}

class GgufVectorsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(GgufVectorsTest, AllCasesAreEqual) {
  QUIRE_TEST_DATA_OR_SKIP(path, "tokenizers/gguf-vocab/ggml-vocab-" + GetParam() + ".gguf");
  const auto tokenizer = TokenizerOfModel(path);
  ASSERT_NE(tokenizer, nullptr);
  ExpectVectors(*tokenizer, path);
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, GgufVectorsTest,
                         ::testing::Values("gpt-2", "falcon", "mpt", "phi-3"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(JsonVectorsTest, AllCasesAreEqual) {
  for (const auto& [directory, vectors] :
       {std::pair("falcon-tokenizer", "falcon"), std::pair("gpt-neox-20b", "mpt"),
        std::pair("phi-3-mini", "phi-3")}) {
    QUIRE_TEST_DATA_OR_SKIP(path,
                            std::string("tokenizers/hf-json/") + directory + "/tokenizer.json");
    QUIRE_TEST_DATA_OR_SKIP(of,
                            std::string("tokenizers/gguf-vocab/ggml-vocab-") + vectors + ".gguf");
    const auto tokenizer = text::testing::TokenizerFromJson(ReadFile(path));
    ASSERT_NE(tokenizer, nullptr);
    ExpectVectors(*tokenizer, of);
  }
}

// Encodes the texts of every file that is a key of `goldens`. Expects the number and the hash of
// the ids, which `goldens` lists as {name: [count, hash]}.
void ExpectHashes(const text::Tokenizer& tokenizer, const json& goldens) {
  ASSERT_GE(goldens.size(), 39u);  // 36 languages, two texts of UTF-8, the naughty strings
  for (const auto& [name, golden] : goldens.items()) {
    QUIRE_TEST_DATA_OR_SKIP(path, name);
    std::vector<int32_t> ids;
    if (name.ends_with(".json")) {  // a list of texts; the ids of each end with -1
      for (const json& text : ParseFile(path)) {
        for (const int32_t id : IdsOf(Encoded(tokenizer, text.get<std::string>())))
          ids.push_back(id);
        ids.push_back(-1);
      }
    } else {
      ids = IdsOf(Encoded(tokenizer, ReadFile(path)));
    }
    EXPECT_EQ(static_cast<int64_t>(ids.size()), golden[0]) << name;
    EXPECT_EQ(text::testing::HashOf(ids), golden[1]) << name;
  }
}

class HuggingFaceIdsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(HuggingFaceIdsTest, EqualOnEveryText) {
  QUIRE_TEST_DATA_OR_SKIP(path, GetParam() + "/tokenizer.json");
  const auto tokenizer = text::testing::TokenizerFromJson(ReadFile(path));
  ASSERT_NE(tokenizer, nullptr);
  ExpectHashes(*tokenizer, ReadTestJson("material_hashes.json")[GetParam()]);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, HuggingFaceIdsTest,
                         ::testing::Values("tokenizers/hf-json/falcon-tokenizer",
                                           "tokenizers/hf-json/gpt-neox-20b",
                                           "tokenizers/hf-json/phi-2",
                                           "tokenizers/hf-json/phi-3-mini",
                                           "models/stories260K-hf"),
                         [](const auto& test) {
                           std::string name = test.param.substr(test.param.rfind('/') + 1);
                           std::erase(name, '-');
                           return name;
                         });

TEST(LlamaCppIdsTest, SmolLm2EqualOnEveryText) {
  // scripts/get_model.sh downloads the model to this path.
  const char* home = std::getenv("HOME");
  const std::string path =
      std::string(home == nullptr ? "" : home) + "/.cache/quire/models/smollm2-135m-instruct.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "model absent: " << path;
  const auto tokenizer = TokenizerOfModel(path);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->end_ids(), (std::vector<int32_t>{0, 2}));  // <|endoftext|>, <|im_end|>
  ExpectHashes(*tokenizer, ReadTestJson("llama_cpp_hashes.json")["smollm2-135m-instruct.gguf"]);
}

TEST(LlamaCppIdsTest, Stories260KEqualOnEveryText) {
  const std::string name = "models/stories260K-gguf/stories260K.f32.gguf";
  QUIRE_TEST_DATA_OR_SKIP(path, name);
  const auto tokenizer = TokenizerOfModel(path);
  ASSERT_NE(tokenizer, nullptr);
  ExpectHashes(*tokenizer, ReadTestJson("llama_cpp_hashes.json")[name]);
}

TEST(Stories260KTest, GoldenPromptsAndTextsFromBothFormats) {
  for (const std::string model :
       {"models/stories260K-gguf/stories260K.f32.gguf", "models/stories260K-hf"}) {
    QUIRE_TEST_DATA_OR_SKIP(path, model);
    QUIRE_TEST_DATA_OR_SKIP(golden, std::string("models/stories260K-hf/golden_greedy.json"));
    const auto tokenizer = TokenizerOfModel(path);
    ASSERT_NE(tokenizer, nullptr);
    EXPECT_EQ(tokenizer->bos_id(), 1);
    EXPECT_EQ(tokenizer->end_ids(), std::vector<int32_t>{2});
    const json file = ParseFile(golden);
    const json& cases = file.is_object() ? file["cases"] : file;
    ASSERT_EQ(cases.size(), 4u);
    for (const json& item : cases) {
      const auto ids = item["ids"].get<std::vector<int32_t>>();
      EXPECT_EQ(IdsOf(Encoded(*tokenizer, item["prompt"].get<std::string>())),
                item["prompt_ids"].get<std::vector<int32_t>>());
      EXPECT_EQ(tokenizer->Decode(ids, /*skip_special_tokens=*/true), item["text"]);
      EXPECT_EQ(IdsOf(Encoded(*tokenizer, item["text"].get<std::string>())), ids);
    }
  }
}

TEST(TokenizerLoaderTest, ChatTemplateAndItsTokens) {
  QUIRE_TEST_DATA_OR_SKIP(path, "tokenizers/gguf-vocab/ggml-vocab-phi-3.gguf");
  const auto model = files::OpenModelFiles(path);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto tokenizer = LoadTokenizer(*model);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto chat = LoadChatTemplate(*model, **tokenizer);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_NE((*chat)->source().find("<|assistant|>"), std::string::npos);
  const auto texts = LoadSpecialTokenTexts(*model, **tokenizer);
  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_EQ(texts->at("bos_token"), "<s>");
  EXPECT_EQ(texts->at("eos_token"), "<|endoftext|>");
}

}  // namespace
}  // namespace quire::engine
