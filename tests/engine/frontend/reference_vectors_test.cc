// Tests tokenizers with real vocabularies on real texts. The expected ids come from llama.cpp's
// test vectors and from the reference implementations. The vocabularies and texts are test
// material. What is part of the project is tested so in tests/text/tokenizer/.

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
using quire::testing::FetchedModelPath;
using quire::testing::IfTestData;
using quire::testing::ReadFile;
using quire::testing::TestDataPath;
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

constexpr char kGgufVocabularies[] = "tokenizers/gguf-vocab";

std::string VocabularyPath(const std::string& name) {
  return *TestDataPath(std::string(kGgufVocabularies) + "/ggml-vocab-" + name + ".gguf");
}

// Returns the last word of a path as the name of a test.
std::string NameOf(const std::string& path) {
  std::string name = path.substr(path.rfind('/') + 1);
  std::erase(name, '-');
  return name;
}

class GgufVectorsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(GgufVectorsTest, AllCasesAreEqual) {
  const std::string path = VocabularyPath(GetParam());
  const auto tokenizer = TokenizerOfModel(path);
  ASSERT_NE(tokenizer, nullptr);
  ExpectVectors(*tokenizer, path);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GgufVectorsTest);
INSTANTIATE_TEST_SUITE_P(Vocabularies, GgufVectorsTest,
                         ::testing::ValuesIn(IfTestData<std::string>(
                             {kGgufVocabularies}, {"gpt-2", "falcon", "mpt", "phi-3"})),
                         [](const auto& test) { return NameOf(test.param); });

struct JsonVectors {
  std::string directory;
  std::string vectors;
};

class JsonVectorsTest : public ::testing::TestWithParam<JsonVectors> {};

TEST_P(JsonVectorsTest, AllCasesAreEqual) {
  const std::string path = "tokenizers/hf-json/" + GetParam().directory + "/tokenizer.json";
  const auto tokenizer = text::testing::TokenizerFromJson(ReadFile(*TestDataPath(path)));
  ASSERT_NE(tokenizer, nullptr);
  ExpectVectors(*tokenizer, VocabularyPath(GetParam().vectors));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(JsonVectorsTest);
INSTANTIATE_TEST_SUITE_P(
    Vocabularies, JsonVectorsTest,
    ::testing::ValuesIn(IfTestData<JsonVectors>(
        {kGgufVocabularies, "tokenizers/hf-json"},
        {{"falcon-tokenizer", "falcon"}, {"gpt-neox-20b", "mpt"}, {"phi-3-mini", "phi-3"}})),
    [](const auto& test) { return NameOf(test.param.vectors); });

// The parts of the test material with the texts of ExpectHashes().
const std::vector<std::string> kTexts = {"bad-input/blns", "bad-input/utf8", "text/udhr"};

template <typename T>
std::vector<T> IfTextsAnd(const std::vector<std::string>& parts, std::vector<T> values) {
  return IfTestData(kTexts, IfTestData(parts, std::move(values)));
}

// Encodes the texts of every file that is a key of `goldens`. Expects the number and the hash of
// the ids, which `goldens` lists as {name: [count, hash]}.
void ExpectHashes(const text::Tokenizer& tokenizer, const json& goldens) {
  ASSERT_GE(goldens.size(), 39u);  // 36 languages, two texts of UTF-8, the naughty strings
  for (const auto& [name, golden] : goldens.items()) {
    const std::string path = *TestDataPath(name);
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
  const std::string path = *TestDataPath(GetParam() + "/tokenizer.json");
  const auto tokenizer = text::testing::TokenizerFromJson(ReadFile(path));
  ASSERT_NE(tokenizer, nullptr);
  ExpectHashes(*tokenizer, ReadTestJson("material_hashes.json")[GetParam()]);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HuggingFaceIdsTest);
INSTANTIATE_TEST_SUITE_P(Tokenizers, HuggingFaceIdsTest,
                         ::testing::ValuesIn(IfTextsAnd<std::string>(
                             {"models/stories260K-hf", "tokenizers/hf-json"},
                             {"tokenizers/hf-json/falcon-tokenizer",
                              "tokenizers/hf-json/gpt-neox-20b", "tokenizers/hf-json/phi-2",
                              "tokenizers/hf-json/phi-3-mini", "models/stories260K-hf"})),
                         [](const auto& test) { return NameOf(test.param); });

struct LlamaCppCase {
  std::string name;  // in the goldens
  std::string path;
  int32_t bos_id;
  std::vector<int32_t> end_ids;
};

class LlamaCppIdsTest : public ::testing::TestWithParam<LlamaCppCase> {};

TEST_P(LlamaCppIdsTest, EqualOnEveryText) {
  const auto tokenizer = TokenizerOfModel(GetParam().path);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->bos_id(), GetParam().bos_id);
  EXPECT_EQ(tokenizer->end_ids(), GetParam().end_ids);
  ExpectHashes(*tokenizer, ReadTestJson("llama_cpp_hashes.json")[GetParam().name]);
}

std::vector<LlamaCppCase> LlamaCppCases() {
  std::vector<LlamaCppCase> cases;
  if (const auto path = FetchedModelPath("smollm2-135m-instruct")) {
    cases.push_back({"smollm2-135m-instruct.gguf", *path, 1, {0, 2}});
  }
  const std::string stories = "models/stories260K-gguf/stories260K.f32.gguf";
  if (const auto path = TestDataPath(stories)) cases.push_back({stories, *path, 1, {2}});
  return IfTextsAnd({}, cases);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LlamaCppIdsTest);
INSTANTIATE_TEST_SUITE_P(Models, LlamaCppIdsTest, ::testing::ValuesIn(LlamaCppCases()),
                         [](const auto& test) {
                           return test.param.name.starts_with("smollm2") ? "SmolLm2"
                                                                         : "Stories260K";
                         });

class Stories260KTest : public ::testing::TestWithParam<std::string> {};

TEST_P(Stories260KTest, GoldenPromptsAndTexts) {
  const auto tokenizer = TokenizerOfModel(*TestDataPath(GetParam()));
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->end_ids(), std::vector<int32_t>{2});
  const json file = ParseFile(*TestDataPath("models/stories260K-hf/golden_greedy.json"));
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

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Stories260KTest);
INSTANTIATE_TEST_SUITE_P(Formats, Stories260KTest,
                         ::testing::ValuesIn(IfTestData<std::string>(
                             {"models/stories260K-gguf", "models/stories260K-hf"},
                             {"models/stories260K-gguf/stories260K.f32.gguf",
                              "models/stories260K-hf"})),
                         [](const auto& test) { return test.index == 0 ? "Gguf" : "HuggingFace"; });

class PublishedTemplateTest : public ::testing::TestWithParam<std::string> {};

TEST_P(PublishedTemplateTest, ComesWithItsTokens) {
  const auto model = files::OpenModelFiles(VocabularyPath(GetParam()));
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

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PublishedTemplateTest);
INSTANTIATE_TEST_SUITE_P(Gguf, PublishedTemplateTest,
                         ::testing::ValuesIn(IfTestData<std::string>({kGgufVocabularies},
                                                                     {"phi-3"})),
                         [](const auto& test) { return NameOf(test.param); });

}  // namespace
}  // namespace quire::engine
