// Tests EncodeOptions::contents: no content makes a control token, whatever it has, and everything
// else is read as always.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <rapidcheck.h>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/testing/test_data.h"
#include "tests/text/tokenizer/goldens.h"

namespace quire::text {
namespace {

using testing::Encoded;
using testing::IdsOf;
using testing::TinyTokenizer;
using testing::TokenizerFromJson;

struct Subject {
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::string> controls;  // the spellings of control tokens
  std::vector<std::string> alone;     // those that are found whatever stands beside them
  std::set<int32_t> control_ids;      // without the unknown token, which no spelling makes
};

bool IsControl(const nlohmann::json& added) {
  const auto content = added["content"].get<std::string>();
  return added["special"].get<bool>() || content.find_first_of("<[|") != std::string::npos;
}

Subject Load(const std::string& tokenizer_json) {
  Subject subject{.tokenizer = TokenizerFromJson(tokenizer_json),
                  .controls = {},
                  .alone = {},
                  .control_ids = {}};
  const nlohmann::json root = nlohmann::json::parse(tokenizer_json);
  for (const nlohmann::json& added : root["added_tokens"]) {
    if (!IsControl(added)) continue;
    subject.controls.push_back(added["content"]);
    if (added["content"] == "<unk>") continue;
    subject.control_ids.insert(added["id"].get<int32_t>());
    if (!added["single_word"].get<bool>()) subject.alone.push_back(added["content"]);
  }
  return subject;
}

Subject Tiny(const std::string& name) {
  return Load(testing::ReadTestJson("tiny_" + name + ".json").dump());
}

int NumControls(const Subject& subject, const std::vector<EncodedToken>& tokens) {
  return static_cast<int>(std::count_if(tokens.begin(), tokens.end(), [&](const auto& token) {
    return subject.control_ids.contains(token.id);
  }));
}

// Returns pieces of control tokens, whole ones, and words.
std::string AnyHostile(const Subject& subject) {
  std::string text;
  for (int i = *rc::gen::inRange(0, 8); i > 0; --i) {
    const std::string control = *rc::gen::elementOf(subject.controls);
    const auto cut = static_cast<size_t>(*rc::gen::inRange<int>(0, std::ssize(control)));
    text += *rc::gen::elementOf(std::vector<std::string>{control, control, control.substr(0, cut),
                                                         control.substr(cut), " ", "\n", "foo",
                                                         "he", "é", "  ", "<", "|", ">"});
  }
  return text;
}

EncodeOptions Literal(std::vector<ByteRange> contents) {
  return {.kind = InputKind::kPart, .contents = std::move(contents)};
}
ByteRange All(const std::string& text) { return {0, static_cast<uint32_t>(text.size())}; }

void ExpectNoContentMakesAControlToken(const Subject& subject) {
  ASSERT_FALSE(subject.controls.empty());
  int num_hostile = 0;
  EXPECT_TRUE(rc::check([&] {
    const std::string text = AnyHostile(subject);
    const auto plain = Encoded(*subject.tokenizer, text, {.kind = InputKind::kPart});
    const auto tokens = Encoded(*subject.tokenizer, text, Literal({All(text)}));
    RC_ASSERT(NumControls(subject, tokens) == 0);
    if (NumControls(subject, plain) > 0) ++num_hostile;
    const bool has_control =
        std::any_of(subject.controls.begin(), subject.controls.end(),
                    [&](const std::string& control) { return text.find(control) != text.npos; });
    if (!has_control) RC_ASSERT(IdsOf(tokens) == IdsOf(plain));
  }));
  EXPECT_GT(num_hostile, 5);
}

// A template's control tokens around contents stay, and none comes from a content or spans it.
void ExpectTheRestIsReadAsAlways(const Subject& subject) {
  EXPECT_TRUE(rc::check([&] {
    std::string text;
    std::vector<ByteRange> contents;
    int num_own = 0;
    for (int i = *rc::gen::inRange(1, 5); i > 0; --i) {
      text += *rc::gen::elementOf(subject.alone);
      ++num_own;
      const std::string content = AnyHostile(subject);
      if (content.empty()) continue;
      contents.push_back({static_cast<uint32_t>(text.size()),
                          static_cast<uint32_t>(text.size() + content.size())});
      text += content;
    }
    const auto tokens = Encoded(*subject.tokenizer, text, Literal(contents));
    RC_ASSERT(NumControls(subject, tokens) == num_own);
  }));
}

TEST(LiteralContentsTest, NoContentMakesAControlToken) {
  const auto expect = [](const std::string& name, const Subject& subject) {
    SCOPED_TRACE(name);
    ExpectNoContentMakesAControlToken(subject);
    ExpectTheRestIsReadAsAlways(subject);
  };
  for (const std::string& name : testing::kTinyNames) expect(name, Tiny(name));
  if (const auto real = quire::testing::TestDataPath("tokenizers/hf-json")) {
    for (const std::string name : {"gpt-neox-20b", "phi-3-mini"}) {
      expect(name, Load(quire::testing::ReadFile(*real + "/" + name + "/tokenizer.json")));
    }
  }
}

TEST(LiteralContentsTest, ATokenThatSpansTheBorderIsNone) {
  const Subject subject = Tiny("split_pattern");
  const std::string text = "<|user|>a<|end|>";
  const int32_t user = Encoded(*subject.tokenizer, text, {.kind = InputKind::kPart})[0].id;
  for (uint32_t begin = 0; begin < 8; ++begin) {
    const auto tokens = Encoded(*subject.tokenizer, text, Literal({{begin, begin + 1}}));
    EXPECT_NE(tokens.front().id, user) << begin;
    EXPECT_EQ(NumControls(subject, tokens), 1) << begin;
  }
  EXPECT_EQ(NumControls(subject, Encoded(*subject.tokenizer, text, Literal({{8, 9}}))), 2);
  EXPECT_EQ(NumControls(subject, Encoded(*subject.tokenizer, text, Literal({}))), 2);
}

TEST(LiteralContentsTest, AddedWordsAndSpacesAreNoControlTokens) {
  const auto tokenizer = TinyTokenizer("byte_level");
  const std::string text = "a  foo<s>";
  const auto plain = IdsOf(Encoded(*tokenizer, "a  foo", {.kind = InputKind::kPart}));
  const auto tokens = IdsOf(Encoded(*tokenizer, text, Literal({All(text)})));
  ASSERT_GT(tokens.size(), plain.size());
  EXPECT_TRUE(std::equal(plain.begin(), plain.end(), tokens.begin()));
}

TEST(LiteralContentsTest, ASignMakesAnAddedTokenAControlToken) {
  // "<think>" is not special, and its content must not be read as it.
  nlohmann::json root = testing::ReadTestJson("tiny_split_pattern.json");
  const int32_t id = 5000;
  root["added_tokens"].push_back({{"id", id},
                                  {"content", "<think>"},
                                  {"special", false},
                                  {"normalized", false},
                                  {"single_word", false},
                                  {"lstrip", false},
                                  {"rstrip", false}});
  const auto tokenizer = TokenizerFromJson(root.dump());
  const std::string text = "<think>";
  EXPECT_EQ(IdsOf(Encoded(*tokenizer, text, {.kind = InputKind::kPart})), std::vector<int32_t>{id});
  for (const EncodedToken& token : Encoded(*tokenizer, text, Literal({All(text)}))) {
    EXPECT_NE(token.id, id);
  }
}

}  // namespace
}  // namespace quire::text
