// Tests properties that every tokenizer must have, on random texts and random ids.

#include "text/tokenizer/tokenizer.h"

#include <map>
#include <memory>
#include <rapidcheck.h>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/interrupt.h"
#include "base/utf8.h"
#include "tests/text/tokenizer/goldens.h"
#include "text/tokenizer/incremental_detokenizer.h"

namespace quire::text {
namespace {

using testing::Encoded;
using testing::IdsOf;
using testing::TinyTokenizer;

class TokenizerTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    tokenizer_ = TinyTokenizer(GetParam());
    ASSERT_NE(tokenizer_, nullptr);
  }
  std::unique_ptr<Tokenizer> tokenizer_;
};

// Returns a random mix of letters, spaces, marks, special tokens and bytes that are not UTF-8.
std::string HostileText() {
  static const std::vector<std::string> atoms = {
      "the", "a", " ",    "  ",       "\n",   "é",        "e\u0301",           "人",    "🙂",
      "½",   "7", "123",  "'s",       "<s>",  "</s>",     "<|user|>",          "<pad>", "foo",
      "▁",   ".", "\xFF", "\xE2\x82", "\xC3", "\xF0\x9F", std::string(1, '\0')};
  const auto picks =
      *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, atoms.size()));
  std::string text;
  for (const size_t pick : picks) text += atoms[pick];
  return text;
}

TEST_P(TokenizerTest, OffsetsAreInOrderAndInTheText) {
  EXPECT_TRUE(rc::check("offsets", [this] {
    const std::string text = HostileText();
    int64_t begin = 0;
    int64_t end = 0;
    for (const EncodedToken& token : Encoded(*tokenizer_, text)) {
      RC_ASSERT(token.id >= 0 && token.id < tokenizer_->vocab_size());
      RC_ASSERT(token.begin >= begin);
      RC_ASSERT(token.end >= end);
      RC_ASSERT(token.begin <= token.end);
      begin = token.begin;
      end = token.end;
    }
    RC_ASSERT(end <= static_cast<int64_t>(text.size()));
  }));
}

TEST_P(TokenizerTest, IncrementalEqualsWholeDecode) {
  EXPECT_TRUE(rc::check("push by push", [this] {
    const auto ids = *rc::gen::container<std::vector<int32_t>>(
        rc::gen::inRange<int32_t>(-2, tokenizer_->vocab_size() + 2));
    const bool skip = *rc::gen::arbitrary<bool>();
    IncrementalDetokenizer detokenizer(*tokenizer_, skip);
    std::string streamed;
    for (const int32_t id : ids) {
      const std::string delta = detokenizer.Push(id);
      RC_ASSERT(base::IsValidUtf8(delta));
      streamed += delta;
    }
    streamed += detokenizer.Flush();
    // A stream is decoded as a continuation of a text, so a leading space stays.
    std::string bytes;
    for (const int32_t id : ids) {
      if (!skip || !tokenizer_->IsSpecial(id)) bytes += tokenizer_->TokenBytes(id);
    }
    std::string whole;
    base::AppendLossyUtf8(bytes, whole);
    RC_ASSERT(streamed == whole);
    if (tokenizer_->strips_leading_space() && whole.starts_with(' ')) whole.erase(0, 1);
    RC_ASSERT(tokenizer_->Decode(ids, skip) == whole);
  }));
}

TEST_P(TokenizerTest, ThreadsShareOne) {
  const std::string text = "The reason is: 人人生而自由 <s> 123456 it's  \n\n ok";
  const std::vector<int32_t> expected = IdsOf(Encoded(*tokenizer_, text));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) count += IdsOf(Encoded(*tokenizer_, text)) != expected ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST_P(TokenizerTest, MegabytesOfOneKind) {
  // Each text repeats one atom, so it may be one long word or only white space. Encoding must not
  // take quadratic time.
  for (const std::string atom :
       {"a", " ", "\n", "ab ", "é", "\u0301", "!", "7", "\xFF", "人", "the", "<"}) {
    std::string text;
    while (text.size() < (1 << 18)) text += atom;
    const auto tokens = Encoded(*tokenizer_, text, {.kind = InputKind::kWhole});
    ASSERT_FALSE(tokens.empty());
    EXPECT_LE(tokens.back().end, static_cast<int64_t>(text.size()));
  }
}

TEST_P(TokenizerTest, NoTokenStandsForMoreThanItsBound) {
  const int64_t bound = tokenizer_->max_token_bytes();
  if (bound == 0) return;
  EXPECT_TRUE(rc::check("bytes are at most tokens times the bound", [&] {
    const std::string text = HostileText();
    const auto tokens = Encoded(*tokenizer_, text, {.kind = InputKind::kPart});
    RC_ASSERT(std::ssize(text) <= bound * std::ssize(tokens));
  }));
}

TEST_P(TokenizerTest, StopsSoonWhenNobodyWaits) {
  for (const std::string atom : {"a", "ab ", "e\u0301"}) {
    std::string text;
    while (text.size() < (1 << 18)) text += atom;
    const size_t whole = Encoded(*tokenizer_, text).size();
    int64_t checks = 0;
    base::Interrupt interrupt(
        [&] { return ++checks < 2 ? absl::OkStatus() : absl::CancelledError(); });
    const size_t cut = Encoded(*tokenizer_, text).size();
    EXPECT_EQ(checks, 2);
    EXPECT_LT(cut, whole / 2 + 2) << '"' << atom << '"';
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, TokenizerTest, ::testing::ValuesIn(testing::kTinyNames),
                         [](const auto& test) { return test.param; });

// Normalization turns U+FDFA into four words with spaces between them, 18 characters in all. Each
// word gets a prefix. As in PyPI's tokenizers, the origin of every token is U+FDFA, and the last
// token also has the quote as an origin.
TEST(UnigramTokenizerTest, WhatOneCharacterBecameComesFromItInOrder) {
  const auto tokenizer = TinyTokenizer("unigram");
  const auto tokens = Encoded(*tokenizer, "\uFDFA\"", {.kind = InputKind::kPart});
  ASSERT_EQ(tokens.size(), 8u);
  for (const EncodedToken& token : tokens) {
    EXPECT_EQ(token.begin, 0);
    EXPECT_EQ(token.end, &token == &tokens.back() ? 4 : 3);
  }
}

TEST(MaxTokenBytesTest, IsKnownWhereEveryByteIsInSomeToken) {
  EXPECT_GT(TinyTokenizer("byte_level")->max_token_bytes(), 0);
  EXPECT_EQ(TinyTokenizer("sentencepiece")->max_token_bytes(), 0) << "its <mask> takes white space";
  EXPECT_EQ(TinyTokenizer("unigram")->max_token_bytes(), 0) << "NFKC shortens";
}

TEST(ByteLevelTokenizerTest, RangesCoverTheTextAndSpellIt) {
  // The vocabulary has a token for every byte, and there is no normalizer. So the tokens spell the
  // text.
  const auto tokenizer = TinyTokenizer("byte_level");
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_TRUE(rc::check("ranges join up", [&tokenizer] {
    const std::string text = HostileText();
    int64_t at = 0;
    std::string spelt;
    for (const EncodedToken& token : Encoded(*tokenizer, text)) {
      RC_ASSERT(token.begin == at ||
                // Bytes that are not UTF-8 are replaced, and all tokens of one replacement have the
                // same range.
                !base::IsValidUtf8(text));
      at = token.end;
      spelt += tokenizer->TokenBytes(token.id);
    }
    RC_ASSERT(at == static_cast<int64_t>(text.size()));
    std::string clean;
    base::AppendLossyUtf8(text, clean);
    RC_ASSERT(spelt == clean);
  }));
}

TEST(SentencePieceTokenizerTest, OffsetsLeaveThePrefixOut) {
  const auto tokenizer = TinyTokenizer("sentencepiece");
  ASSERT_NE(tokenizer, nullptr);
  const std::string text = "and the 🙂";
  for (const EncodedToken& token : Encoded(*tokenizer, text, {.kind = InputKind::kPart})) {
    const auto part =
        text.substr(static_cast<size_t>(token.begin), static_cast<size_t>(token.end - token.begin));
    const std::string_view bytes = tokenizer->TokenBytes(token.id);
    if (token.begin == 0) {
      EXPECT_EQ(" " + part, bytes.substr(0, part.size() + 1));
    } else {
      EXPECT_EQ(part, bytes);
    }
  }
}

// A tokenizer whose tokens are the byte strings that a test gives.
class ScriptedTokenizer final : public Tokenizer {
 public:
  explicit ScriptedTokenizer(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}
  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  absl::StatusOr<std::vector<EncodedToken>> Encode(std::string_view,
                                                   const EncodeOptions&) const override {
    return std::vector<EncodedToken>();
  }
  std::string_view TokenBytes(int32_t id) const override {
    return tokens_[static_cast<size_t>(id)];
  }
  std::string_view Piece(int32_t id) const override { return TokenBytes(id); }
  int64_t max_token_bytes() const override { return 0; }
  bool IsSpecial(int32_t) const override { return false; }
  bool strips_leading_space() const override { return false; }
  const InputFrame& frame() const override { return frame_; }
  int32_t bos_id() const override { return -1; }
  const std::vector<int32_t>& end_ids() const override { return no_ids_; }

 private:
  const std::vector<std::string> tokens_;
  const std::vector<int32_t> no_ids_;
  const InputFrame frame_;
};

TEST(IncrementalDetokenizerTest, WhereverTokensCutTheText) {
  EXPECT_TRUE(rc::check("tokens cut anywhere", [] {
    const std::string text = HostileText();
    std::vector<std::string> tokens;
    for (size_t at = 0; at < text.size();) {
      const auto length = *rc::gen::inRange<size_t>(1, 8);
      tokens.push_back(text.substr(at, length));
      at += length;
    }
    const ScriptedTokenizer tokenizer(tokens);
    IncrementalDetokenizer detokenizer(tokenizer, /*skip_special_tokens=*/true);
    std::string streamed;
    std::string pushed;
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      const std::string delta = detokenizer.Push(id);
      RC_ASSERT(base::IsValidUtf8(delta));
      streamed += delta;
      pushed += tokens[static_cast<size_t>(id)];
      if (base::IsValidUtf8(pushed)) RC_ASSERT(streamed == pushed);  // nothing certain is held back
    }
    streamed += detokenizer.Flush();
    std::string whole;
    base::AppendLossyUtf8(text, whole);
    RC_ASSERT(streamed == whole);
  }));
}

TEST(IncrementalDetokenizerTest, NeverHalfACharacter) {
  const auto tokenizer = TinyTokenizer("byte_level");
  ASSERT_NE(tokenizer, nullptr);
  std::map<std::string, int32_t> byte_ids;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id)
    byte_ids.emplace(tokenizer->TokenBytes(id), id);
  IncrementalDetokenizer detokenizer(*tokenizer, /*skip_special_tokens=*/true);
  const auto push = [&](const char* byte) { return detokenizer.Push(byte_ids.at(byte)); };
  EXPECT_EQ(push("\xF0"), "");
  EXPECT_EQ(push("\x9F"), "");
  EXPECT_EQ(push("\x99"), "");
  EXPECT_EQ(push("\x82"), "🙂");
  EXPECT_EQ(push("\xE2"), "");
  EXPECT_EQ(push("A"), "\uFFFDA");  // the character was never finished
  EXPECT_EQ(push("\xE2"), "");
  EXPECT_EQ(push("\x82"), "");
  EXPECT_EQ(detokenizer.Flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.Flush(), "");
}

}  // namespace
}  // namespace quire::text
