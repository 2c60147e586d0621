#include "text/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"

#include "tests/testing/test_data.h"
#include "tests/text/tokenizer/goldens.h"

namespace quire::text {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using testing::Encoded;
using ::testing::HasSubstr;
using testing::IdsOf;
using testing::Joined;
using testing::ReadTestJson;
using testing::TinyTokenizer;

// The reference puts special tokens around a text that has them already, and InputFrame does not.
std::vector<EncodedToken> Surrounded(const InputFrame& frame, std::vector<EncodedToken> tokens) {
  for (const int32_t id : frame.prefix_ids) tokens.insert(tokens.begin(), {.id = id});
  for (const int32_t id : frame.suffix_ids) tokens.push_back({.id = id});
  return tokens;
}

class TinyTokenizerTest : public ::testing::TestWithParam<std::string> {};

TEST_P(TinyTokenizerTest, GivesTheReferencesIds) {
  const auto tokenizer = TinyTokenizer(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  const json cases = ReadTestJson("tiny_cases.json");
  const json& texts = cases["texts"];
  ASSERT_GT(texts.size(), 80u);
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    const auto part = Encoded(*tokenizer, text, {.kind = InputKind::kPart});
    EXPECT_EQ(Joined(Surrounded(tokenizer->frame(), part)), cases["ids"][GetParam()][i])
        << texts[i];
    EXPECT_EQ(Joined(Encoded(*tokenizer, text,
                             {.kind = InputKind::kPart, .parse_special_tokens = false})),
              cases["plain_ids"][GetParam()][i])
        << "plain " << texts[i];
  }
}

TEST_P(TinyTokenizerTest, DecodesAsTheReference) {
  const auto tokenizer = TinyTokenizer(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  const json cases = ReadTestJson("tiny_cases.json");
  const json& decoded = cases["decoded"][GetParam()];
  ASSERT_GT(decoded.size(), 20u);
  for (size_t i = 0; i < decoded.size(); ++i) {
    const auto ids = IdsOf(Encoded(*tokenizer, cases["texts"][i].get<std::string>()));
    EXPECT_EQ(tokenizer->Decode(ids, /*skip_special_tokens=*/true), decoded[i])
        << cases["texts"][i];
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, TinyTokenizerTest, ::testing::ValuesIn(testing::kTinyNames),
                         [](const auto& test) { return test.param; });

// Returns the status of loading tiny_byte_level.json after `edit` changed it.
absl::Status StatusOfEdited(const std::function<void(json&)>& edit) {
  json root = ReadTestJson("tiny_byte_level.json");
  edit(root);
  const json null;
  return CreateTokenizer(HfTokenizerFiles{root.dump(), null, null, null}).status();
}

void ExpectRefused(const std::string& words, const std::function<void(json&)>& edit) {
  const absl::Status status = StatusOfEdited(edit);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << words;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

TEST(TokenizerJsonTest, RefusesByName) {
  EXPECT_TRUE(StatusOfEdited([](json&) {}).ok());
  ExpectRefused("WordPiece is not supported", [](json& r) { r["model"]["type"] = "WordPiece"; });
  ExpectRefused("BertNormalizer is not supported", [](json& r) {
    r["normalizer"] = {{"type", "BertNormalizer"}};
  });
  ExpectRefused("normalizer: Precompiled: precompiled_charsmap: want Base64", [](json& r) {
    r["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "?"}};
  });
  ExpectRefused("normalizer: precompiled_charsmap: want at least 8 bytes", [](json& r) {
    r["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}};
  });
  ExpectRefused("BertPreTokenizer is not supported",
                [](json& r) { r["pre_tokenizer"]["type"] = "BertPreTokenizer"; });
  ExpectRefused("RobertaProcessing is not supported",
                [](json& r) { r["post_processor"]["type"] = "RobertaProcessing"; });
  ExpectRefused("WordPiece is not supported", [](json& r) { r["decoder"]["type"] = "WordPiece"; });
  ExpectRefused("dropout", [](json& r) { r["model"]["dropout"] = 0.1; });
  ExpectRefused("end_of_word_suffix", [](json& r) { r["model"]["end_of_word_suffix"] = "</w>"; });
  ExpectRefused("(&&)", [](json& r) {
    r["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "[a&&b]"}}}};
  });
}

TEST(TokenizerJsonTest, RefusesWhatContradictsItself) {
  ExpectRefused("is no token", [](json& r) { r["model"]["merges"].push_back({"q", "zzz"}); });
  ExpectRefused("want \"left right\"", [](json& r) { r["model"]["merges"].push_back("qz"); });
  ExpectRefused("both token", [](json& r) { r["model"]["vocab"]["qqqq"] = 5; });
  ExpectRefused("want an id", [](json& r) { r["model"]["vocab"]["qqqq"] = -1; });
  ExpectRefused("want an id", [](json& r) { r["model"]["vocab"]["qqqq"] = 1e300; });
  ExpectRefused("of a vocabulary of", [](json& r) { r["model"]["vocab"]["qqqq"] = 16'000'000; });
  ExpectRefused("vocab: want an object", [](json& r) { r["model"].erase("vocab"); });
  ExpectRefused("unk_token", [](json& r) { r["model"]["unk_token"] = "nothing"; });
  ExpectRefused("which is", [](json& r) { r["added_tokens"][0]["id"] = 7; });
  ExpectRefused("ByteLevel both", [](json& r) { r["decoder"] = nullptr; });
  ExpectRefused("special_tokens", [](json& r) {
    r["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", "x"}}}}, {{"Sequence", json::object()}}}},
        {"special_tokens", {{"x", {{"ids", {99999}}}}}}};
  });
}

TEST(TokenizerJsonTest, RefusesABadUnigram) {
  const json good = ReadTestJson("tiny_unigram.json");
  const auto refused = [&](const std::string& words, const std::function<void(json&)>& edit) {
    json root = good;
    edit(root);
    const json null;
    const absl::Status status =
        CreateTokenizer(HfTokenizerFiles{root.dump(), null, null, null}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << words;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  };
  refused("vocab: want an array", [](json& r) { r["model"]["vocab"] = json::object(); });
  refused("vocab: want an array", [](json& r) { r["model"]["vocab"] = json::array(); });
  refused("vocab: want [token, score] at 3", [](json& r) { r["model"]["vocab"][3] = {"a"}; });
  refused("vocab: want [token, score] at 3", [](json& r) { r["model"]["vocab"][3] = {1, -1.0}; });
  refused("unk_id: want an id", [](json& r) { r["model"]["unk_id"] = 1'000'000; });
  refused("Unigram over ByteLevel", [](json& r) {
    r["pre_tokenizer"] = {{"type", "ByteLevel"}};
    r["decoder"] = {{"type", "ByteLevel"}};
  });
  refused("Metaspace: want it before ByteLevel", [](json& r) {
    r["pre_tokenizer"] = {{"type", "Sequence"},
                          {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Metaspace"}}}}};
  });
}

TEST(TokenizerJsonTest, TakesEndAndBosFromTheFilesBeside) {
  const std::string text = ReadTestJson("tiny_split_pattern.json").dump();
  const json config = {{"eos_token_id", 2}};
  const json generation_config = {{"eos_token_id", {1, 3}}, {"bos_token_id", 0}};
  const json tokenizer_config = {{"bos_token", {{"content", "<|user|>"}}}, {"eos_token", "</s>"}};
  auto tokenizer =
      CreateTokenizer(HfTokenizerFiles{text, config, generation_config, tokenizer_config});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->end_ids(), ElementsAre(1, 2, 3));
  EXPECT_EQ((*tokenizer)->bos_id(), 2);

  EXPECT_THAT(IdsOf(Encoded(**tokenizer, "", {.kind = InputKind::kWhole})), ElementsAre(0, 1));
}

// Gemma has added tokens that are runs of space markers. The decoder replaces markers in added
// tokens, too.
TEST(TokenizerJsonTest, AMarkerInAnAddedTokenIsASpace) {
  json root = ReadTestJson("tiny_sentencepiece.json");
  const auto id = static_cast<int32_t>(root["model"]["vocab"].size() + 100);
  root["added_tokens"].push_back(
      {{"id", id}, {"content", "▁▁x"}, {"special", false}, {"normalized", false}});
  const auto tokenizer = testing::TokenizerFromJson(root.dump());
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->TokenBytes(id), "  x");
  EXPECT_EQ(tokenizer->Piece(id), "▁▁x");
}

// Behind a Prepend and a Replace, "<x>" is searched as "▁<x>", so the token takes the space before
// it, as in Hugging Face's tokenizers.
TEST(TokenizerJsonTest, ANormalizedAddedTokenIsDecodedAsItIsSearched) {
  json root = ReadTestJson("tiny_sentencepiece.json");
  const auto id = static_cast<int32_t>(root["model"]["vocab"].size() + 100);
  root["added_tokens"].push_back(
      {{"id", id}, {"content", "<x>"}, {"special", false}, {"normalized", true}});
  const auto tokenizer = testing::TokenizerFromJson(root.dump());
  ASSERT_NE(tokenizer, nullptr);
  for (const std::string text : {"hello <x> world", "<x> world", "hello<x>", "hello  <x>"}) {
    const auto ids = IdsOf(Encoded(*tokenizer, text));
    EXPECT_EQ(std::ranges::count(ids, id), text == "hello<x>" ? 0 : 1) << text;
    EXPECT_EQ(tokenizer->Decode(ids, /*skip_special_tokens=*/true), text);
  }
}

TEST(TokenizerJsonTest, AnythingElseIsAnErrorAndNoCrash) {
  const json null;
  for (const char* text :
       {"", "null", "[]", "{}", "{\"model\":[]}", "{\"model\":{\"vocab\":{}}}",
        "{\"model\":{\"vocab\":{\"a\":0},\"merges\":{}}}",
        "{\"model\":{\"vocab\":{\"a\":\"b\"},\"merges\":[]}}",
        "{\"added_tokens\":[1],\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}"}) {
    const auto status = CreateTokenizer(HfTokenizerFiles{text, null, null, null}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace quire::text
