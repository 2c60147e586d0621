#include "engine/frontend/tokenizer_loader.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "files/gguf.h"
#include "tests/files/aligned_bytes.h"
#include "tests/files/gguf_writer.h"
#include "tests/text/tokenizer/goldens.h"
#include "text/tokenizer/byte_alphabet.h"

namespace quire::engine {
namespace {

using quire::testing::AlignedBytes;
using quire::testing::GgufWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns a GGUF file whose tokens are bytes 0 to 255, "he", " *", and the control token
// <|im_end|>.
GgufWriter ByteLevelFile(const std::string& pre) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte)
    tokens.emplace_back(text::ByteCharacter(static_cast<uint8_t>(byte)));
  tokens.push_back("he");
  tokens.push_back("\u0120*");
  tokens.push_back("<|im_end|>");
  std::vector<int32_t> types(tokens.size(), 1);
  types.back() = 3;
  GgufWriter writer;
  writer.String("tokenizer.ggml.model", "gpt2")
      .String("tokenizer.ggml.pre", pre)
      .Strings("tokenizer.ggml.tokens", tokens)
      .Array("tokenizer.ggml.token_type", files::GgufType::kInt32, types)
      .Strings("tokenizer.ggml.merges", {"h e", "\u0120 *"})
      .String("tokenizer.chat_template", "{{ messages }}")
      .U32("tokenizer.ggml.bos_token_id", 258)
      .U32("tokenizer.ggml.eos_token_id", 258)
      .Bool("tokenizer.ggml.add_bos_token", true);
  return writer;
}

TEST(TokenizerLoaderTest, ReadsGgufMetadata) {
  GgufWriter writer = ByteLevelFile("gpt-2");
  const AlignedBytes file(writer.Build());
  auto contents = files::ParseGguf(file.span(), "tiny.gguf");
  ASSERT_TRUE(contents.ok()) << contents.status();
  files::OpenedModel model{.path = "tiny.gguf"};
  model.gguf.emplace(std::move(contents->metadata));
  const auto tokenizer = LoadTokenizer(model);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(text::testing::IdsOf(text::testing::Encoded(**tokenizer, "he!<|im_end|>")),
              ElementsAre(258, 256, '!', 258));
  EXPECT_THAT((*tokenizer)->end_ids(), ElementsAre(258));
  const auto texts = LoadSpecialTokenTexts(model, **tokenizer);
  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_EQ(texts->at("bos_token"), "<|im_end|>");
  EXPECT_EQ(texts->at("eos_token"), "<|im_end|>");
  EXPECT_EQ((*LoadChatTemplate(model, **tokenizer))->source(), "{{ messages }}");
  EXPECT_EQ(TokenizerWarning(model), "");
}

// GPT-2's pre-tokenizer takes " *" as one word. llama.cpp's default splits it into two words.
TEST(TokenizerLoaderTest, AMissingPreTokenizerIsTheArchitecturesOrWarnedOf) {
  const auto load = [](const std::string& architecture, const std::string& pre) {
    GgufWriter writer = ByteLevelFile(pre);
    writer.String("general.architecture", architecture);
    const std::string bytes = writer.Build();
    const AlignedBytes file(bytes);
    auto contents = files::ParseGguf(file.span(), "tiny.gguf");
    EXPECT_TRUE(contents.ok()) << contents.status();
    files::OpenedModel model{.path = "tiny.gguf"};
    model.gguf.emplace(std::move(contents->metadata));
    const auto tokenizer = LoadTokenizer(model);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return std::pair(
        text::testing::Encoded(**tokenizer, " *", {.kind = text::InputKind::kPart}).size(),
        TokenizerWarning(model));
  };
  for (const std::string known : {"gptneox", "mpt", "gpt2"}) {
    const auto [words, warning] = load(known, "");
    EXPECT_EQ(words, 1u) << known;
    EXPECT_THAT(warning, HasSubstr("which all models of its architecture have"));
    EXPECT_EQ(load(known, "default").first, 2u) << "the file has the last word";
    EXPECT_EQ(load(known, "default").second, "");
  }
  EXPECT_EQ(load("falcon", "").first, load("falcon", "falcon").first);
  EXPECT_EQ(load("bloom", "").first, load("bloom", "bloom").first);
  const auto [words, warning] = load("llama", "");
  EXPECT_EQ(words, 2u);
  EXPECT_THAT(warning, HasSubstr("taken is default, as in llama.cpp"));
}

TEST(TokenizerLoaderTest, NamesTheFileInErrors) {
  GgufWriter writer = ByteLevelFile("nonsense");
  const AlignedBytes file(writer.Build());
  auto contents = files::ParseGguf(file.span(), "dir/tiny.gguf");
  ASSERT_TRUE(contents.ok()) << contents.status();
  files::OpenedModel model{.path = "dir/tiny.gguf"};
  model.gguf.emplace(std::move(contents->metadata));
  const absl::Status status = LoadTokenizer(model).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("dir/tiny.gguf: tokenizer.ggml.pre"));
}

TEST(TokenizerLoaderTest, ReadsHuggingFaceFiles) {
  files::OpenedModel model{.path = "dir"};
  EXPECT_EQ(LoadTokenizer(model).status().code(), absl::StatusCode::kNotFound);
  model.hf.emplace();
  EXPECT_EQ(LoadTokenizer(model).status().code(), absl::StatusCode::kNotFound);
  model.hf->tokenizer_json = "{";
  EXPECT_THAT(std::string(LoadTokenizer(model).status().message()),
              HasSubstr("dir: tokenizer.json"));
  model.hf->tokenizer_json = text::testing::ReadTestJson("tiny_split_pattern.json").dump();
  model.hf->tokenizer_config = {{"bos_token", "<s>"}, {"eos_token", {{"content", "<|end|>"}}}};
  const auto tokenizer = LoadTokenizer(model);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->end_ids(), ElementsAre(3));
  const auto texts = LoadSpecialTokenTexts(model, **tokenizer);
  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_EQ(texts->at("bos_token"), "<s>");
  EXPECT_EQ(texts->at("eos_token"), "<|end|>");
  EXPECT_EQ(*LoadChatTemplate(model, **tokenizer), nullptr);
  EXPECT_EQ(TokenizerWarning(model), "");
}

}  // namespace
}  // namespace quire::engine
