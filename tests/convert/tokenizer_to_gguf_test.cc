#include "convert/tokenizer_to_gguf.h"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "base/strings.h"
#include "tests/convert/converted.h"
#include "tests/convert/small_tokenizers.h"
#include "tests/text/tokenizer/goldens.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/gguf_pre_tokenizers.h"
#include "text/tokenizer/gguf_vocabulary.h"

namespace quire::convert {
namespace {

using base::ToAbsl;
using nlohmann::json;
using ::testing::AllOf;
using testing::ByteLevelJson;
using testing::Convert;
using testing::Converted;
using testing::DirectoryOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::SentencePieceJson;
using testing::SplitsOf;
using text::testing::Encoded;
using text::testing::IdsOf;
using text::testing::ReadTestJson;

std::string StringAt(const files::GgufValues& values, std::string_view key) {
  const auto metadata = values.View("made.gguf");
  EXPECT_TRUE(metadata.ok()) << metadata.status();
  return std::string(metadata->StringOr(key, "absent").value());
}

text::GgufTokenType TypeAt(const files::GgufValues& values, size_t id) {
  const auto metadata = values.View("made.gguf");
  EXPECT_TRUE(metadata.ok()) << metadata.status();
  return static_cast<text::GgufTokenType>(metadata->Ints("tokenizer.ggml.token_type").value()[id]);
}

void ExpectSameIds(const Converted& converted, const std::string& text) {
  EXPECT_EQ(IdsOf(Encoded(*converted.gguf, text)), IdsOf(Encoded(*converted.directory, text)))
      << text;
  const text::EncodeOptions plain{.kind = text::InputKind::kPart, .parse_special_tokens = false};
  EXPECT_EQ(IdsOf(Encoded(*converted.gguf, text, plain)),
            IdsOf(Encoded(*converted.directory, text, plain)))
      << "plain " << text;
}

void ExpectRefused(
    const std::string& words, json root, const std::function<void(json&)>& edit = [](json&) {}) {
  edit(root);
  const auto converted = Convert(DirectoryOf(root.dump()));
  EXPECT_EQ(converted.status().code(), absl::StatusCode::kInvalidArgument) << words;
  EXPECT_THAT(std::string(converted.status().message()), HasSubstr(words));
  EXPECT_THAT(std::string(converted.status().message()), HasSubstr("dir: "));
}

constexpr const char* kTexts[] = {"",
                                  "hello hello, he\nll  w",
                                  " hello",
                                  "a12b 1212 111 'st 'S ab\r\n\r\nba\t?!.",
                                  "<|end|><think>x</s> <s>",
                                  "\xC3\xA9\xE4\xBA\xBA\xF0\x9F\x99\x82 broken \xC3",
                                  "a`b `` ?'aAbB.\n\n"};

TEST(TokenizerToGgufTest, ByteLevelIsReadBackTheSame) {
  const auto converted = Convert(DirectoryOf(ByteLevelJson().dump(), {{"eos_token", "<|end|>"}}));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_THAT(converted->warnings, IsEmpty());
  for (const char* text : kTexts) ExpectSameIds(*converted, text);
  const auto end = static_cast<size_t>(converted->directory->vocab_size() - 2);
  EXPECT_EQ(TypeAt(converted->values, 'a'), text::GgufTokenType::kNormal);
  EXPECT_EQ(TypeAt(converted->values, end), text::GgufTokenType::kControl);
  EXPECT_EQ(TypeAt(converted->values, end + 1), text::GgufTokenType::kUserDefined);
  EXPECT_EQ(StringAt(converted->values, "tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(StringAt(converted->values, "tokenizer.chat_template"), "absent");
}

// A post-processor that puts BOS before a text and EOS behind it.
json EndsOfSentencePiece() {
  const auto special = [](const std::string& token) {
    return json{{"SpecialToken", {{"id", token}}}};
  };
  return {{"type", "TemplateProcessing"},
          {"single", {special("<s>"), {{"Sequence", {{"id", "A"}}}}, special("</s>")}},
          {"special_tokens", {{"<s>", {{"ids", {1}}}}, {"</s>", {{"ids", {2}}}}}}};
}

TEST(TokenizerToGgufTest, SentencePieceIsReadBackTheSame) {
  json root = SentencePieceJson();
  root["post_processor"] = EndsOfSentencePiece();
  const auto converted = Convert(DirectoryOf(root.dump(), {{"bos_token", "<s>"},
                                                           {"eos_token", "</s>"},
                                                           {"pad_token", "<unk>"},
                                                           {"chat_template", "{{ bos_token }}x"}}));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_THAT(converted->warnings, IsEmpty());
  for (const char* text : kTexts) ExpectSameIds(*converted, text);
  EXPECT_EQ(converted->gguf->Piece(Encoded(*converted->gguf, "hello")[1].id), "▁hello");
  EXPECT_THAT(IdsOf(Encoded(*converted->gguf, "", {.kind = text::InputKind::kWhole})),
              ElementsAre(1, 2));
  EXPECT_EQ(TypeAt(converted->values, 0), text::GgufTokenType::kUnknown);
  EXPECT_EQ(TypeAt(converted->values, 1), text::GgufTokenType::kControl);
  EXPECT_EQ(TypeAt(converted->values, 3), text::GgufTokenType::kByte);
  EXPECT_EQ(StringAt(converted->values, "tokenizer.ggml.model"), "llama");
  EXPECT_EQ(StringAt(converted->values, "tokenizer.chat_template"), "{{ bos_token }}x");
  const auto metadata = converted->values.View("made.gguf");
  EXPECT_EQ(metadata->IntOr("tokenizer.ggml.padding_token_id", -1).value(), 0);
}

TEST(TokenizerToGgufTest, WarnsOfATemplateThatWritesNoBos) {
  json root = SentencePieceJson();
  root["post_processor"] = EndsOfSentencePiece();
  const auto converted = Convert(DirectoryOf(
      root.dump(), {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"chat_template", "x"}}));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_THAT(converted->warnings,
              ElementsAre("the chat template writes no <s>; GGUF's readers begin a conversation "
                          "with it all the same"));
}

TEST(TokenizerToGgufTest, AChatTemplateThatIsNoTextIsLeftOut) {
  const auto converted = Convert(
      DirectoryOf(ByteLevelJson().dump(), {{"eos_token", "<|end|>"}, {"chat_template", 3}}));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_THAT(converted->warnings, ElementsAre(AllOf(HasSubstr("chat_template: want a string"),
                                                     HasSubstr(": it is left out"))));
  EXPECT_EQ(StringAt(converted->values, "tokenizer.chat_template"), "absent");
}

TEST(TokenizerToGgufTest, WhatHasNoBosSaysSo) {
  const auto converted = Convert(DirectoryOf(SentencePieceJson().dump()));
  ASSERT_TRUE(converted.ok()) << converted.status();
  // The file must say that there is no BOS. If the key for BOS were absent, readers would take
  // token 1 as BOS.
  EXPECT_EQ(converted->gguf->bos_id(), -1);
  EXPECT_THAT(converted->gguf->end_ids(), IsEmpty());
}

TEST(TokenizerToGgufTest, NoSpaceInFrontWhereTheDirectoryPutsNone) {
  json root = SentencePieceJson();
  root["normalizer"] = root["normalizer"]["normalizers"][1];
  root["decoder"]["decoders"].erase(3);
  const auto converted = Convert(DirectoryOf(root.dump()));
  ASSERT_TRUE(converted.ok()) << converted.status();
  for (const char* text : kTexts) ExpectSameIds(*converted, text);
  EXPECT_FALSE(converted->gguf->strips_leading_space());
}

// In Gemma, a run of spaces is an added token that merges can also make. The converter writes this
// token as a normal token. Readers of GGUF would match a user-defined token against the characters
// "▁▁" of a text, not against spaces.
TEST(TokenizerToGgufTest, ARunOfSpacesIsMergedAndNotAdded) {
  json root = SentencePieceJson();
  root["normalizer"] = root["normalizer"]["normalizers"][1];
  root["decoder"]["decoders"].erase(3);
  const auto run = static_cast<int32_t>(root["model"]["vocab"].size());
  root["model"]["vocab"].emplace("▁▁", run);
  root["model"]["merges"].insert(root["model"]["merges"].begin(), "▁ ▁");
  root["added_tokens"].push_back(
      {{"id", run}, {"content", "▁▁"}, {"special", false}, {"normalized", false}});
  const auto converted = Convert(DirectoryOf(root.dump()));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_THAT(converted->warnings, ElementsAre(HasSubstr("take \"▁\" in a text as a space")));
  EXPECT_EQ(TypeAt(converted->values, static_cast<size_t>(run)), text::GgufTokenType::kNormal);
  EXPECT_EQ(converted->gguf->TokenBytes(run), "  ");
  EXPECT_THAT(IdsOf(Encoded(*converted->gguf, "  ")), ElementsAre(run));
  ExpectSameIds(*converted, "h  e   h    e");
}

TEST(TokenizerToGgufTest, AnAddedTokenOfTheConfigIsWritten) {
  const json root = ByteLevelJson();
  const auto id = root["model"]["vocab"]["stab"].get<size_t>();
  const json added = {{absl::StrCat(id), {{"content", "stab"}, {"special", false}}}};
  const auto converted = Convert(DirectoryOf(root.dump(), {{"added_tokens_decoder", added}}));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(TypeAt(converted->values, id), text::GgufTokenType::kUserDefined);
  EXPECT_THAT(IdsOf(Encoded(*converted->directory, "stab")), ElementsAre(id));
  ExpectSameIds(*converted, "a stab b");
}

// For every distinct split that tokenizer.ggml.pre can name, the converter finds the name by
// comparing how texts are split.
TEST(TokenizerToGgufTest, FindsThePreTokenizerOfEachSplit) {
  const std::vector<std::string_view> names = text::DistinctGgufPreTokenizers();
  ASSERT_GE(names.size(), 10u);
  EXPECT_EQ(names[0], "gpt-2");
  for (const std::string_view name : names) {
    const text::GgufPreTokenizer& pre = *text::FindGgufPreTokenizer(name);
    json root = ByteLevelJson();
    root["pre_tokenizer"] = SplitsOf(pre.patterns);
    root["model"]["ignore_merges"] = pre.ignore_merges;
    const auto converted = Convert(DirectoryOf(root.dump()));
    ASSERT_TRUE(converted.ok()) << ToAbsl(name) << ": " << converted.status();
    EXPECT_EQ(StringAt(converted->values, "tokenizer.ggml.pre"), name);
    for (const char* text : kTexts) ExpectSameIds(*converted, text);
  }
}

// Here the splits are written as in the tokenizer.json files of these model families. llama.cpp
// writes the same splits differently.
TEST(TokenizerToGgufTest, FindsThePreTokenizerOfAFamily) {
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const json digits = {{"type", "Digits"}, {"individual_digits", true}};
  const json falcon = {{"type", "Sequence"},
                       {"pretokenizers",
                        {{{"type", "Punctuation"}, {"behavior", "Contiguous"}},
                         byte_level,
                         {{"type", "Digits"}, {"individual_digits", false}},
                         {{"type", "Split"},
                          {"pattern", {{"Regex", "[0-9][0-9][0-9]"}}},
                          {"behavior", "Isolated"}}}}};
  const std::string llama3 =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const std::string bloom = " ?[^(\\s|[.,!?…。，、।۔،])]+";
  const std::pair<const char*, json> families[] = {
      {"gpt-2", byte_level},
      {"smollm", {{"type", "Sequence"}, {"pretokenizers", {digits, byte_level}}}},
      {"dbrx", SplitsOf({llama3})},
      {"bloom", SplitsOf({bloom})},
  };
  for (const auto& [name, pre_tokenizer] : families) {
    json root = ByteLevelJson();
    root["pre_tokenizer"] = pre_tokenizer;
    const auto converted = Convert(DirectoryOf(root.dump()));
    ASSERT_TRUE(converted.ok()) << name << ": " << converted.status();
    EXPECT_EQ(StringAt(converted->values, "tokenizer.ggml.pre"), name);
  }
  // Falcon's tokenizer.json also splits digits from a space before them, but llama.cpp's "falcon"
  // does not. The tokens of this vocabulary show the difference, so no name fits.
  ExpectRefused("The nearest is ", ByteLevelJson(),
                [&](json& root) { root["pre_tokenizer"] = falcon; });
}

TEST(TokenizerToGgufTest, RowsWithoutATokenArePadding) {
  json root = ByteLevelJson();
  const auto tokens = static_cast<int32_t>(root["model"]["vocab"].size() + 2);
  const auto converted = Convert(DirectoryOf(root.dump()), tokens + 3);
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->gguf->vocab_size(), tokens + 3);
  const std::vector<int32_t> ids = {tokens, tokens + 1, tokens + 2};
  EXPECT_EQ(converted->directory->IdsWithoutPiece(tokens + 3), ids);
  EXPECT_EQ(converted->gguf->IdsWithoutPiece(tokens + 3), ids);
  EXPECT_EQ(converted->gguf->Decode(ids, false), "");
  const auto padding = static_cast<size_t>(tokens + 2);
  EXPECT_EQ(TypeAt(converted->values, padding), text::GgufTokenType::kUnused);
  ExpectSameIds(*converted, absl::StrCat("a [PAD", tokens, "][PAD", tokens + 2, "]"));
}

TEST(TokenizerToGgufTest, AnAddedTokenWithoutARowIsLeftOut) {
  json root = ByteLevelJson();
  const auto tokens = static_cast<int64_t>(root["model"]["vocab"].size() + 2);
  const auto converted = Convert(DirectoryOf(root.dump()), tokens - 1);
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->gguf->vocab_size(), tokens - 1);
  EXPECT_THAT(converted->warnings, ::testing::Contains(HasSubstr("<think>")));
  EXPECT_THAT(std::string(Convert(DirectoryOf(root.dump()), 300).status().message()),
              HasSubstr("of an embedding of 300 rows"));
}

TEST(TokenizerToGgufTest, EveryEndIsKeptOrNamed) {
  files::OpenedModel model = DirectoryOf(ByteLevelJson().dump());
  model.hf->generation_config = {{"eos_token_id", {'a', 'b', 's'}}};
  auto converted = Convert(model);
  ASSERT_TRUE(converted.ok()) << converted.status();
  // Readers of GGUF take "<|end|>" as the end of a turn because of its text.
  EXPECT_EQ(converted->gguf->end_ids().size(), 4u);
  EXPECT_THAT(converted->warnings, ElementsAre(HasSubstr("\"<|end|>\" too")));
  model.hf->generation_config = {{"eos_token_id", {'a', 'b', 's', 't'}}};
  EXPECT_THAT(std::string(Convert(model).status().message()),
              HasSubstr("would no longer end a generation"));
}

TEST(TokenizerToGgufTest, SaysWhatIsLost) {
  const auto warnings_of = [](json root, const std::function<void(json&)>& edit) {
    edit(root);
    const auto converted = Convert(DirectoryOf(root.dump(), {{"eos_token", "<|end|>"}}));
    EXPECT_TRUE(converted.ok()) << converted.status();
    return converted.ok() ? converted->warnings : std::vector<std::string>();
  };
  const json bytes = ByteLevelJson();
  EXPECT_THAT(warnings_of(bytes,
                          [](json& root) {
                            root["normalizer"] = {{"type", "NFC"}};
                          }),
              ElementsAre(HasSubstr("the normalizer NFC")));
  for (const char* field : {"lstrip", "rstrip", "single_word"}) {
    EXPECT_THAT(warnings_of(bytes, [&](json& root) { root["added_tokens"][1][field] = true; }),
                ElementsAre(HasSubstr(absl::StrCat(
                    "\"<think>\" may become other tokens: GGUF has no field for ", field))));
  }
  EXPECT_THAT(warnings_of(bytes, [](json& root) { root["added_tokens"][1]["content"] = "</s>"; }),
              ElementsAre(HasSubstr("take \"</s>\" as control tokens"),
                          HasSubstr("\"</s>\" may become other tokens")));
  EXPECT_THAT(warnings_of(bytes,
                          [](json& root) {
                            root["model"]["vocab"].erase(std::string(text::ByteCharacter(0x01)));
                          }),
              ElementsAre(HasSubstr("bytes without a token: 1")));
  EXPECT_THAT(warnings_of(SentencePieceJson(),
                          [](json& root) {
                            root["normalizer"] = nullptr;
                            root["pre_tokenizer"] = {{"type", "Metaspace"},
                                                     {"prepend_scheme", "first"},
                                                     {"split", false}};
                          }),
              ElementsAre(HasSubstr("begins with a space"), HasSubstr("Metaspace")));
}

// Phi-3's added tokens strip the white space after them. Readers of GGUF also strip this white
// space if general.name contains "phi-3", in upper or lower case.
TEST(TokenizerToGgufTest, TheNameOfPhi3KeepsItsStrippedSpaces) {
  json root = ByteLevelJson();
  for (json& token : root["added_tokens"]) token["rstrip"] = true;
  const auto converted =
      Convert(DirectoryOf(root.dump(), {{"eos_token", "<|end|>"}}), 0, "Phi-3 mini");
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_THAT(converted->warnings, IsEmpty());
  ExpectSameIds(*converted, "a <|end|> \n b");
}

TEST(TokenizerToGgufTest, RefusesWhatGgufCannotSay) {
  ExpectRefused("model: Unigram", ReadTestJson("tiny_unigram.json"));
  ExpectRefused("without byte_fallback", ReadTestJson("tiny_metaspace.json"));
  const json bytes = ByteLevelJson();
  ExpectRefused("no name of tokenizer.ggml.pre splits text into these words. The nearest is", bytes,
                [](json& root) { root["pre_tokenizer"] = SplitsOf({"[a-z]+"}); });
  ExpectRefused("default", bytes, [](json& root) { root["pre_tokenizer"] = SplitsOf({"[a-z]+"}); });
  ExpectRefused("normalizer: NFKC", bytes, [](json& root) {
    root["normalizer"] = {{"type", "NFKC"}};
  });
  ExpectRefused("add_prefix_space", bytes,
                [](json& root) { root["pre_tokenizer"]["add_prefix_space"] = true; });
  ExpectRefused("they can have none", bytes, [](json& root) {
    root["model"]["vocab"].emplace("a b", 5000);
    root["model"]["vocab"].emplace("a bc", 5001);
    root["model"]["vocab"].emplace("c", 5002);
    root["model"]["merges"].push_back({"a b", "c"});
  });
  ExpectRefused("adds the tokens [97 98] in front", bytes, [](json& root) {
    root["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", "x"}}}}, {{"Sequence", {{"id", "A"}}}}}},
        {"special_tokens", {{"x", {{"ids", {97, 98}}}}}}};
  });
  const json pieces = SentencePieceJson();
  ExpectRefused("each byte, got 255", pieces,
                [](json& root) { root["model"]["vocab"].erase("<0x41>"); });
  ExpectRefused("ignore_merges", pieces, [](json& root) { root["model"]["ignore_merges"] = true; });
  // Without the merge of "h" and "e", readers of GGUF would still merge the two, because "he" is a
  // token.
  ExpectRefused("it merges any two whose text together is a token", pieces,
                [](json& root) { root["model"]["merges"].erase(root["model"]["merges"].begin()); });
  files::OpenedModel file{.path = "dir"};
  files::GgufValues values;
  std::vector<std::string> warnings;
  EXPECT_EQ(TokenizerToGguf(file, 10, values, warnings).code(), absl::StatusCode::kInvalidArgument);
}

TEST(TokenizerToGgufTest, AnErrorAddsNothing) {
  json root = ByteLevelJson();
  root["normalizer"] = {{"type", "NFC"}};
  root["pre_tokenizer"] = SplitsOf({"[a-z]+"});
  files::GgufValues values;
  values.String("general.name", "x");
  std::vector<std::string> warnings;
  EXPECT_FALSE(TokenizerToGguf(DirectoryOf(root.dump()), 1000, values, warnings).ok());
  EXPECT_EQ(values.size(), 1);
  EXPECT_THAT(warnings, IsEmpty());
}

}  // namespace
}  // namespace quire::convert
