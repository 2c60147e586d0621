#include "text/tokenizer/gguf_vocabulary.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/strings.h"
#include "tests/text/tokenizer/goldens.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/gguf_pre_tokenizers.h"
#include "text/tokenizer/pre_tokenizer.h"

namespace quire::text {
namespace {

using ::testing::ElementsAre;
using testing::Encoded;
using ::testing::HasSubstr;
using testing::IdsOf;
using testing::Joined;

// The vocabulary of tiny_spm.json as a GGUF file would hold it. Owns the texts of the tokens.
struct SpmFile {
  nlohmann::json json = testing::ReadTestJson("tiny_spm.json");
  std::vector<std::string> pieces = json["tokens"].get<std::vector<std::string>>();
  GgufVocabulary vocabulary;

  SpmFile() {
    vocabulary.model = "llama";
    vocabulary.tokens.assign(pieces.begin(), pieces.end());
    vocabulary.scores = json["scores"].get<std::vector<float>>();
    for (size_t i = 0; i < pieces.size(); ++i) {
      vocabulary.token_types.push_back(i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1);
    }
  }
};

// A byte-level vocabulary: the bytes 0 to 255 in order, four merged pieces, then the control
// tokens.
struct ByteLevelFile {
  std::vector<std::string> pieces;
  GgufVocabulary vocabulary;

  explicit ByteLevelFile(const std::vector<std::string>& control = {"<|im_end|>", "<bos>"}) {
    for (int byte = 0; byte < 256; ++byte)
      pieces.emplace_back(ByteCharacter(static_cast<uint8_t>(byte)));
    pieces.insert(pieces.end(), {"he", "ll", "hell", "Ġhe"});
    pieces.insert(pieces.end(), control.begin(), control.end());
    vocabulary.model = "gpt2";
    vocabulary.pre = "gpt-2";
    vocabulary.tokens.assign(pieces.begin(), pieces.end());
    vocabulary.token_types.assign(pieces.size() - control.size(), 1);
    vocabulary.token_types.resize(pieces.size(), 3);
    vocabulary.merges = {"h e", "l l", "he ll", "Ġ he"};
  }
};

TEST(GgufVocabularyTest, SentencePieceMergesByScore) {
  const SpmFile file;
  const auto tokenizer = CreateTokenizer(file.vocabulary);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const EncodeOptions plain{.kind = InputKind::kPart, .parse_special_tokens = false};
  const auto& texts = file.json["texts"];
  ASSERT_GT(texts.size(), 20u);
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(Joined(Encoded(**tokenizer, texts[i].get<std::string>(), plain)), file.json["ids"][i])
        << texts[i];
  }
  EXPECT_THAT(IdsOf(Encoded(**tokenizer, "")), ElementsAre(1));  // Llama adds BOS by default
  EXPECT_THAT((*tokenizer)->end_ids(), ElementsAre(2));
  EXPECT_TRUE((*tokenizer)->strips_leading_space());
}

TEST(GgufVocabularyTest, ControlTokensAreNeverMadeOfText) {
  SpmFile file;
  file.pieces[1] = "th";  // a control token whose text the merges could make
  file.vocabulary.tokens[1] = file.pieces[1];
  const auto tokenizer = CreateTokenizer(file.vocabulary);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const auto& token : Encoded(**tokenizer, "the thing",
                                   {.kind = InputKind::kPart, .parse_special_tokens = false})) {
    EXPECT_NE(token.id, 1);
  }
}

TEST(GgufVocabularyTest, CharactersThatOnlyLongerPiecesHave) {
  // "é" is no piece, but "éa" is: SentencePiece merges any two neighbours whose text is a piece.
  GgufVocabulary vocabulary{
      .model = "llama", .tokens = {"<unk>", "a", "éa", "▁"}, .scores = {0, 0, -1, 0}};
  vocabulary.token_types = {2, 1, 1, 1};
  vocabulary.add_bos = false;
  const auto tokenizer = CreateTokenizer(vocabulary);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(IdsOf(Encoded(**tokenizer, "éaéé")), ElementsAre(3, 2, 0));
}

TEST(GgufVocabularyTest, PiecesAcrossASpace) {
  GgufVocabulary vocabulary{.model = "llama",
                            .tokens = {"<unk>", "a", "b", "▁", "▁b", "a▁b"},
                            .scores = {0, 0, 0, 0, -1, -2}};
  vocabulary.token_types = {2, 1, 1, 1, 1, 1};
  vocabulary.add_bos = false;
  vocabulary.add_space_prefix = false;
  const auto tokenizer = CreateTokenizer(vocabulary);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(IdsOf(Encoded(**tokenizer, "a b b")), ElementsAre(5, 4));
}

TEST(GgufVocabularyTest, ByteLevel) {
  ByteLevelFile file;
  file.vocabulary.bos_id = 261;
  file.vocabulary.eos_id = 5;
  const auto tokenizer = CreateTokenizer(file.vocabulary);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(IdsOf(Encoded(**tokenizer, "hello he<|im_end|>")), ElementsAre(258, 'o', 259, 260));
  // 5 is the file's EOS. 260 ends a turn because its text is well known.
  EXPECT_THAT((*tokenizer)->end_ids(), ElementsAre(5, 260));
  EXPECT_EQ((*tokenizer)->bos_id(), 261);
  EXPECT_EQ((*tokenizer)->TokenBytes(259), " he");
  EXPECT_EQ((*tokenizer)->Piece(259), "Ġhe");
  EXPECT_TRUE((*tokenizer)->IsSpecial(260));
  EXPECT_FALSE((*tokenizer)->IsSpecial(259));
  EXPECT_EQ((*tokenizer)->TokenBytes(-1), "");
  EXPECT_EQ((*tokenizer)->TokenBytes(262), "");
}

TEST(GgufVocabularyTest, AddsBosAndEosAsTheFileSays) {
  ByteLevelFile file;
  file.vocabulary.bos_id = 261;
  file.vocabulary.eos_id = 260;
  file.vocabulary.add_bos = true;
  file.vocabulary.add_eos = true;
  auto tokenizer = CreateTokenizer(file.vocabulary);
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_THAT(IdsOf(Encoded(**tokenizer, "a")), ElementsAre(261, 'a'));
  EXPECT_THAT(IdsOf(Encoded(**tokenizer, "a", {.kind = InputKind::kWhole})),
              ElementsAre(261, 'a', 260));
  EXPECT_THAT(IdsOf(Encoded(**tokenizer, "a", {.kind = InputKind::kPart})), ElementsAre('a'));
  file.vocabulary.add_bos.reset();
  file.vocabulary.add_eos.reset();
  file.vocabulary.pre = "llama-bpe";  // adds BOS unless the file decides
  tokenizer = CreateTokenizer(file.vocabulary);
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_THAT(IdsOf(Encoded(**tokenizer, "a")), ElementsAre(261, 'a'));
}

TEST(GgufVocabularyTest, Phi3TokensTakeTheWhiteSpaceBehindThem) {
  ByteLevelFile file({"<|end|>", "<s>"});
  const EncodeOptions options;
  auto tokenizer = CreateTokenizer(file.vocabulary);
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_THAT(IdsOf(Encoded(**tokenizer, "<|end|>\n<s>\n", options)),
              ElementsAre(260, '\n', 261, '\n'));
  file.vocabulary.model_name = "Phi3 mini";
  tokenizer = CreateTokenizer(file.vocabulary);
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_THAT(IdsOf(Encoded(**tokenizer, "<|end|>\n<s>\n", options)), ElementsAre(260, 261, '\n'));
}

TEST(GgufVocabularyTest, ATokenThatEndsATurnIsControlWhateverItsType) {
  ByteLevelFile file({"</s>", "<mark>"});
  file.vocabulary.token_types[260] = file.vocabulary.token_types[261] = 4;  // user-defined
  const auto tokenizer = CreateTokenizer(file.vocabulary);
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_TRUE((*tokenizer)->IsSpecial(260));
  EXPECT_FALSE((*tokenizer)->IsSpecial(261));
  const EncodeOptions plain{.kind = InputKind::kPart, .parse_special_tokens = false};
  EXPECT_THAT(IdsOf(Encoded(**tokenizer, "</s><mark>", plain)),
              ElementsAre('<', '/', 's', '>', 261));
}

// Tests how named pre-tokenizers split a text, and that the patterns of every name compile.
TEST(GgufVocabularyTest, NamedSplits) {
  const auto words = [](std::string_view name) {
    const GgufPreTokenizer* pre = FindGgufPreTokenizer(name);
    std::string out(name);
    if (pre == nullptr) return out + ": unknown";
    PreTokenizer pre_tokenizer;
    for (const std::string_view pattern : pre->patterns) {
      pre_tokenizer.AddSplit(Regex::Create(pattern).value(), SplitBehavior::kIsolated, false);
    }
    SplitText split;
    EXPECT_TRUE(
        pre_tokenizer.Split({.text = "He'LL say: camelCase 2048,\u00a0\n\n ok"}, split).ok());
    out += ":";
    for (const TextPart& word : split.words) absl::StrAppend(&out, "|", base::ToAbsl(word.text));
    return out;
  };
  EXPECT_EQ(words("gpt-2"), "gpt-2:|He|'|LL| say|:| camelCase| 2048|,|\u00a0\n\n| ok");
  EXPECT_EQ(words("llama-bpe"), "llama-bpe:|He|'LL| say|:| camelCase| |204|8|,|\u00a0\n\n| ok");
  EXPECT_EQ(words("qwen2"), "qwen2:|He|'LL| say|:| camelCase| |2|0|4|8|,|\u00a0\n\n| ok");
  EXPECT_EQ(words("smollm"), "smollm:|He|'|LL| say|:| camelCase| |2|0|4|8|,|\u00a0\n\n| ok");
  EXPECT_EQ(words("bloom"), "bloom:|He'LL| say:| camelCase| 2048|,\u00a0\n\n| ok");
  EXPECT_EQ(words("viking"), "viking:|He'LL| say:| camelCase| |2|0|4|8|,\u00a0\n\n| ok");
  EXPECT_EQ(words("tekken"), "tekken:|He|'LL| say|:| camel|Case| |2|0|4|8|,|\u00a0\n\n| ok");
  EXPECT_EQ(words("llama4"), "llama4:|He'LL| say|:| camel|Case| |204|8|,|\u00a0\n\n| ok");
  EXPECT_EQ(words("falcon"), "falcon:|He|'|LL| say|:| camelCase| |204|8|,|\u00a0\n\n| ok");
  EXPECT_EQ(words("default"), "default:|He|'|LL| say|:| camelCase| |204|8|,|\u00a0\n\n| ok");
  const std::vector<std::string> names = absl::StrSplit(GgufPreTokenizerNames(), ", ");
  EXPECT_GT(names.size(), 30u);
  for (const std::string& name : names) EXPECT_THAT(words(name), HasSubstr("|He")) << name;
}

// As in llama.cpp, where a text finds only the last of equal tokens.
TEST(GgufVocabularyTest, ATextBecomesTheLastOfEqualTokens) {
  ByteLevelFile bytes;
  bytes.vocabulary.tokens[256] = "hell";  // "he" before; "hell" is also token 258
  bytes.vocabulary.merges = {"h e", "l l", "Ġ he", "he ll"};
  bytes.vocabulary.tokens[3] = "he";
  const auto tokenizer = CreateTokenizer(bytes.vocabulary);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(IdsOf(Encoded(**tokenizer, "hell")), ElementsAre(258));
  EXPECT_EQ((*tokenizer)->TokenBytes(256), "hell");
  EXPECT_EQ((*tokenizer)->TokenBytes(258), "hell");

  SpmFile pieces;
  const std::vector<int32_t> before = IdsOf(Encoded(**CreateTokenizer(pieces.vocabulary), "the"));
  const auto last = static_cast<size_t>(before.back());
  pieces.vocabulary.tokens.push_back(pieces.vocabulary.tokens[last]);
  pieces.vocabulary.scores.push_back(pieces.vocabulary.scores[last]);
  pieces.vocabulary.token_types.push_back(1);
  std::vector<int32_t> after = before;
  std::ranges::replace(after, before.back(), static_cast<int32_t>(pieces.pieces.size()));
  EXPECT_EQ(IdsOf(Encoded(**CreateTokenizer(pieces.vocabulary), "the")), after);
}

TEST(GgufVocabularyTest, RefusesWhatItDoesNotKnowOrContradictsItself) {
  const auto expect_refused = [](const std::string& words,
                                 const std::function<void(GgufVocabulary&)>& edit) {
    ByteLevelFile file;
    edit(file.vocabulary);
    const absl::Status status = CreateTokenizer(file.vocabulary).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << words;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  };
  expect_refused("unknown tokenizer \"bert\"", [](auto& v) { v.model = "bert"; });
  expect_refused("unknown pre-tokenizer \"nonsense\"; known are gpt-2",
                 [](auto& v) { v.pre = "nonsense"; });
  expect_refused("want 1 to", [](auto& v) { v.tokens.clear(); });
  expect_refused("token_type: want one of each", [](auto& v) { v.token_types.pop_back(); });
  expect_refused("is both token", [](auto& v) { v.tokens[3] = v.tokens.back(); });
  expect_refused("is both token", [](auto& v) { v.tokens.back() = v.tokens[3]; });
  expect_refused("which is no token", [](auto& v) { v.merges.push_back("h h"); });
  expect_refused("want \"left right\"", [](auto& v) { v.merges.push_back("hh"); });
  expect_refused("want \"left right\"", [](auto& v) { v.merges.push_back("h "); });
  expect_refused("add_bos_token", [](auto& v) { v.add_bos = true; });
  expect_refused("add_eos_token", [](auto& v) {
    v.add_eos = true;
    v.eos_id = 100000;
  });
  expect_refused("scores: want one of each", [](auto& v) { v.model = "llama"; });
  expect_refused("NaN", [](auto& v) {
    v.model = "llama";
    v.scores.assign(v.tokens.size(), std::nanf(""));
  });
  const std::string long_piece(5000, 'x');
  expect_refused("want at most", [&](auto& v) { v.tokens[0] = long_piece; });
}

}  // namespace
}  // namespace quire::text
