// Converts real vocabularies to GGUF values. Compares the tokenizer of the directory with the
// tokenizer that is read from the GGUF values, on many texts. The bundled model's vocabulary is
// part of the project; the others, and most texts, are test material.

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"

#include "base/utf8.h"
#include "tests/convert/converted.h"
#include "tests/testing/test_data.h"
#include "tests/text/tokenizer/goldens.h"
#include "text/tokenizer/normal_form.h"

namespace quire::convert {
namespace {

using quire::testing::IfTestData;
using quire::testing::ReadFile;
using quire::testing::TestDataPath;
using testing::Convert;
using testing::Converted;
using testing::DirectoryOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using text::testing::Encoded;
using text::testing::IdsOf;
using text::testing::ParseFile;

std::vector<std::string> TextsOf(const std::string& path) {
  const std::string whole = ReadFile(path);
  std::vector<std::string> texts = absl::StrSplit(whole, '\n');
  texts.push_back(whole);
  return texts;
}

// Returns, where the test material is, the Declaration of Human Rights in many languages, UTF-8
// stress texts, and the Big List of Naughty Strings. The declarations and the stress texts are
// returned whole and also line by line.
std::vector<std::string> CorporaTexts() {
  std::vector<std::string> texts;
  const auto add = [&](const std::string& path) {
    for (std::string& text : TextsOf(path)) texts.push_back(std::move(text));
  };
  if (const auto folder = TestDataPath("text/udhr")) {
    for (const auto& file : std::filesystem::directory_iterator(*folder)) {
      if (file.path().extension() == ".txt") add(file.path().string());
    }
  }
  for (const char* name : {"bad-input/utf8/UTF-8-demo.txt", "bad-input/utf8/UTF-8-test.kuhn.txt"}) {
    if (const auto path = TestDataPath(name)) add(*path);
  }
  if (const auto path = TestDataPath("bad-input/blns/blns.json")) {
    for (const auto& text : ParseFile(*path)) texts.push_back(text.get<std::string>());
  }
  return texts;
}

std::string InNfc(const std::string& text) {
  std::string valid = base::LossyUtf8(text);
  const auto normal = text::ToNormalForm(text::NormalForm::kNfc, {.text = valid});
  return normal ? normal->text : valid;
}

// Expects that both tokenizers encode every text to the same ids, with special tokens and without,
// and that both decode these ids to the same text.
void ExpectSame(const Converted& converted, const std::vector<std::string>& texts) {
  size_t different = 0;
  for (const std::string& text : texts) {
    const auto want = IdsOf(Encoded(*converted.directory, text));
    const auto got = IdsOf(Encoded(*converted.gguf, text));
    const text::EncodeOptions plain{.kind = text::InputKind::kPart, .parse_special_tokens = false};
    const bool same =
        want == got &&
        IdsOf(Encoded(*converted.directory, text, plain)) ==
            IdsOf(Encoded(*converted.gguf, text, plain)) &&
        converted.directory->Decode(want, false) == converted.gguf->Decode(want, false);
    if (same) continue;
    if (++different <= 3) ADD_FAILURE() << "differs: " << text.substr(0, 200);
  }
  EXPECT_EQ(different, 0u) << "of " << texts.size();
}

TEST(RealTokenizersTest, TheBundledModelIsReadBackTheSame) {
  const auto model = files::OpenModelFiles("models/quire-stories");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto converted = Convert(*model);
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_THAT(converted->warnings, IsEmpty());
  EXPECT_EQ(converted->gguf->bos_id(), 0);
  EXPECT_THAT(converted->gguf->end_ids(), ElementsAre(0));
  std::vector<std::string> texts = text::testing::ReadTestJson("tiny_cases.json")["texts"];
  for (std::string& text : TextsOf("models/quire-stories/README.md")) {
    texts.push_back(std::move(text));
  }
  for (std::string& text : CorporaTexts()) texts.push_back(std::move(text));
  ExpectSame(*converted, texts);
}

struct RealCase {
  const char* directory;
  bool nfc = false;
  std::vector<std::string> warnings;  // a part of each expected warning
};

class RealDirectoryTest : public ::testing::TestWithParam<RealCase> {};

TEST_P(RealDirectoryTest, IsReadBackTheSame) {
  const std::string path = *TestDataPath(std::string(GetParam().directory) + "/tokenizer.json");
  const std::filesystem::path config =
      std::filesystem::path(path).replace_filename("tokenizer_config.json");
  const files::OpenedModel model =
      DirectoryOf(ReadFile(path),
                  std::filesystem::exists(config) ? ParseFile(config.string()) : nlohmann::json());
  const std::string name = std::filesystem::path(GetParam().directory).filename().string();
  const auto converted = Convert(model, 0, name);
  ASSERT_TRUE(converted.ok()) << converted.status();
  ASSERT_EQ(converted->warnings.size(), GetParam().warnings.size())
      << ::testing::PrintToString(converted->warnings);
  for (size_t i = 0; i < converted->warnings.size(); ++i) {
    EXPECT_THAT(converted->warnings[i], HasSubstr(GetParam().warnings[i]));
  }
  std::vector<std::string> texts = CorporaTexts();
  EXPECT_GT(texts.size(), 8000u);
  if (GetParam().nfc) {
    for (std::string& text : texts) text = InNfc(text);
  }
  ExpectSame(*converted, texts);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RealDirectoryTest);
INSTANTIATE_TEST_SUITE_P(
    Vocabularies, RealDirectoryTest,
    ::testing::ValuesIn(IfTestData<RealCase>(
        {"bad-input/blns", "bad-input/utf8", "models/stories260K-hf", "text/udhr",
         "tokenizers/hf-json"},
        {{.directory = "tokenizers/hf-json/falcon-tokenizer",
          .warnings = {"bytes without a token: 15", "\"<|endoftext|>\" too"}},
         {.directory = "tokenizers/hf-json/gpt-neox-20b",
          .nfc = true,
          .warnings = {"NFC", "\"<|endoftext|>\" too"}},
         {.directory = "tokenizers/hf-json/phi-2"},
         {.directory = "tokenizers/hf-json/phi-3-mini",
          .warnings = {"\"</s>\" as control", "\"<|end|>\" too", "beside \"</s>\""}},
         {.directory = "models/stories260K-hf"}})),
    [](const auto& test) {
      std::string name = std::filesystem::path(test.param.directory).filename().string();
      std::erase(name, '-');
      return name;
    });

}  // namespace
}  // namespace quire::convert
