// Tests what is put around an input, which tokens are special, and what a template sees of them.
// testdata/special_tokens.json has the answers of transformers for the settings of directories.

#include "text/tokenizer/special_tokens.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "tests/text/tokenizer/goldens.h"
#include "text/chat_template.h"
#include "text/tokenizer/gguf_vocabulary.h"
#include "text/tokenizer/input_frame.h"
#include "text/tokenizer/tokenizer_json.h"

namespace quire::text {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using testing::Encoded;
using testing::IdsOf;

using IdList = std::vector<int32_t>;

constexpr std::string_view kTemplate =
    "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ eos_token }}";

TEST(SpecialTokensTest, OfADirectoryAreThoseOfTransformers) {
  const json goldens = testing::ReadTestJson("special_tokens.json");
  const json null;
  const std::string text = goldens["text"];
  ASSERT_GT(goldens["cases"].size(), 400u);
  for (const json& row : goldens["cases"]) {
    SCOPED_TRACE(absl::StrCat(row["tokenizer"].dump(), " ", row["config"].dump()));
    const std::string tokenizer_json = goldens["tokenizers"][row["tokenizer"]].dump();
    const auto tokenizer =
        CreateTokenizer(HfTokenizerFiles{tokenizer_json, null, null, row["config"]});
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const IdList whole = IdsOf(Encoded(**tokenizer, text, {.kind = InputKind::kWhole}));
    EXPECT_EQ(whole, row["ids"].get<IdList>());
    EXPECT_EQ((*tokenizer)->Decode(whole, /*skip_special_tokens=*/true), row["shown"]);
    const auto names = NamedSpecialTokens(row["config"]);
    EXPECT_EQ(json(names), row["names"]);

    const auto chat = ChatTemplate::Create(kTemplate, names);
    ASSERT_TRUE(chat.ok()) << chat.status();
    const auto rendered = (*chat)->Render({{"user", "a"}}, /*add_generation_prompt=*/false);
    ASSERT_TRUE(rendered.ok()) << rendered.status();
    EXPECT_EQ((*tokenizer)->frame().BeginChat(rendered->text), row["chat"]);
    EXPECT_EQ(IdsOf(Encoded(**tokenizer, rendered->text, {.kind = InputKind::kChat})),
              row["chat_ids"].get<IdList>());

    // A prompt is what transformers makes of the text, without what it puts behind.
    const auto num_behind = std::ssize((*tokenizer)->frame().suffix_ids);
    EXPECT_EQ(IdsOf(Encoded(**tokenizer, text)), IdList(whole.begin(), whole.end() - num_behind));
  }
}

// These classes of transformers build a tokenizer of their own, with what surrounds a text.
TEST(SpecialTokensTest, WhatSurroundsATextIsThatOfTheClass) {
  const json goldens = testing::ReadTestJson("special_tokens.json");
  const json null;
  ASSERT_EQ(goldens["around"].size(), 8u * 4 * 3 * 3);
  for (const json& row : goldens["around"]) {
    const std::string tokenizer_json = goldens["tokenizers"][row["tokenizer"]].dump();
    const auto tokenizer =
        CreateTokenizer(HfTokenizerFiles{tokenizer_json, null, null, row["config"]});
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const InputFrame& frame = (*tokenizer)->frame();
    EXPECT_EQ(frame.prefix_ids, row["before"].get<IdList>()) << row;
    EXPECT_EQ(frame.suffix_ids, row["behind"].get<IdList>()) << row;
  }
}

TEST(SpecialTokensTest, RefusesAnAddedTokenWithoutAnId) {
  const json null;
  const std::string tokenizer_json =
      testing::ReadTestJson("special_tokens.json")["tokenizers"]["bos"].dump();
  for (const json& decoder : {json{{"x", {{"content", "<x>"}}}}, json{{"30", "<x>"}}}) {
    const json config = {{"added_tokens_decoder", decoder}};
    EXPECT_EQ(CreateTokenizer(HfTokenizerFiles{tokenizer_json, null, null, config}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// A GGUF file of the letters a and b, BOS (2) and EOS (3).
absl::StatusOr<std::unique_ptr<Tokenizer>> GgufTokenizer(std::optional<bool> add_bos,
                                                         std::optional<bool> add_eos,
                                                         bool has_types = true) {
  GgufVocabulary vocabulary{.model = "gpt2",
                            .pre = "gpt-2",
                            .tokens = {"a", "b", "<s>", "</s>"},
                            .bos_id = 2,
                            .eos_id = 3,
                            .add_bos = add_bos,
                            .add_eos = add_eos};
  if (has_types) vocabulary.token_types = {1, 1, 3, 3};
  return CreateTokenizer(vocabulary);
}

TEST(SpecialTokensTest, OfAGgufFileAreThoseOfLlamaCpp) {
  for (const std::optional<bool> add_bos : {std::optional<bool>(), {true}, {false}}) {
    for (const std::optional<bool> add_eos : {std::optional<bool>(), {true}, {false}}) {
      SCOPED_TRACE(absl::StrCat(add_bos.value_or(false), add_eos.value_or(false)));
      const auto tokenizer = GgufTokenizer(add_bos, add_eos);
      ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
      const bool has_bos = add_bos.value_or(false);
      const auto ids = [&](std::string_view text, InputKind kind) {
        return IdsOf(Encoded(**tokenizer, text, {.kind = kind}));
      };
      const auto with_bos = [&](IdList rest) {
        if (has_bos) rest.insert(rest.begin(), 2);
        return rest;
      };
      for (const InputKind kind : {InputKind::kPrompt, InputKind::kChat}) {
        EXPECT_EQ(ids("ab", kind), with_bos({0, 1}));
        EXPECT_EQ(ids("", kind), with_bos({}));
        EXPECT_EQ(ids("<s>ab", kind), (IdList{2, 0, 1})) << "never twice";
        EXPECT_EQ(ids("<s><s>a", kind), (IdList{2, 2, 0})) << "what was written stays";
        EXPECT_EQ(ids("a<s>", kind), with_bos({0, 2}));
      }
      EXPECT_EQ(ids("ab", InputKind::kPart), (IdList{0, 1}));
      IdList whole = with_bos({0, 1});
      if (add_eos.value_or(false)) whole.push_back(3);
      EXPECT_EQ(ids("ab", InputKind::kWhole), whole);

      // A template that writes no BOS gives the prompt of one that does.
      const InputFrame& frame = (*tokenizer)->frame();
      EXPECT_EQ(frame.BeginChat("ab"), has_bos ? "<s>ab" : "ab");
      EXPECT_EQ(frame.BeginChat("<s>ab"), "<s>ab");
      // A literal content that looks like the prefix is none.
      EXPECT_EQ(frame.BeginChat("<s>ab", 0), has_bos ? "<s><s>ab" : "<s>ab");
      EXPECT_EQ(ids(frame.BeginChat("ab"), InputKind::kChat), with_bos({0, 1}));
    }
  }
}

TEST(SpecialTokensTest, NothingIsPutTwice) {
  const auto tokenizer = GgufTokenizer(true, true);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto whole = [&](std::string_view text) {
    return IdsOf(Encoded(**tokenizer, text, {.kind = InputKind::kWhole}));
  };
  for (const std::string_view text : {"a", "<s>a", "a</s>", "<s>a</s>"}) {
    EXPECT_EQ(whole(text), (IdList{2, 0, 3})) << text;
  }
  EXPECT_EQ(whole(""), (IdList{2, 3}));
  EXPECT_EQ(whole("<s>"), (IdList{2, 3}));

  // BOS and EOS may be one token. It stands at both ends of an empty text.
  std::vector<EncodedToken> tokens;
  const InputFrame frame{.prefix_ids = {7}, .suffix_ids = {7}};
  frame.Put(InputKind::kWhole, 0, tokens);
  EXPECT_THAT(IdsOf(tokens), ElementsAre(7, 7));
}

TEST(SpecialTokensTest, TheLeadingPrefixesAreCounted) {
  EXPECT_EQ((InputFrame{.prefix_ids = {7}}).NumLeading(IdList{7, 7, 1, 7}), 2);
  EXPECT_EQ((InputFrame{.prefix_ids = {7, 8}}).NumLeading(IdList{7, 8, 7, 1}), 2);
  EXPECT_EQ((InputFrame{.prefix_ids = {7, 8}}).NumLeading(IdList{7}), 0);
  EXPECT_EQ(InputFrame().NumLeading(IdList{7, 7}), 0);
}

TEST(SpecialTokensTest, ABosThatNoTextCanWriteIsPutBeforeAChatAllTheSame) {
  const auto tokenizer = GgufTokenizer(true, false, /*has_types=*/false);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->frame().BeginChat("ab"), "ab");
  EXPECT_THAT(IdsOf(Encoded(**tokenizer, "ab", {.kind = InputKind::kChat})), ElementsAre(2, 0, 1));
}

}  // namespace
}  // namespace quire::text
