#include "engine/sharing/session_seam.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/testing/fake_tokenizer.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMaxModelLen = 64;
constexpr int32_t kXy = 256;  // the tokenizer's token "xy"

// Renders the answers of earlier turns without what stands before "#".
constexpr char kForgetful[] =
    "{% for m in messages %}{{ m.role[0] }}:"
    "{{ m.content.split('#')[-1] if m.role == 'assistant' else m.content }};{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}";

class SessionSeamTest : public ::testing::Test {
 protected:
  SessionContent Extended(const SessionContent& before, const PromptContent& given,
                          bool generates = true) {
    const auto extended = seam_.Extend(before, given, generates);
    EXPECT_TRUE(extended.ok()) << extended.status();
    if (!extended.ok()) return before;
    kept_ = extended->kept_tokens;
    return extended->content;
  }
  std::string Error(const SessionContent& before, const PromptContent& given,
                    bool generates = true) {
    const auto extended = seam_.Extend(before, given, generates);
    EXPECT_EQ(extended.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(extended.status().message());
  }
  static std::string Text(const SessionContent& content) {
    std::string text;
    for (const int32_t id : content.ToIds()) {
      text += id == kXy ? std::string("[xy]") : std::string(1, static_cast<char>(id));
    }
    return text;
  }
  static SessionContent Answered(SessionContent content, const std::string& answer) {
    content.AppendGenerated(TokenIds(answer.begin(), answer.end()));
    return content;
  }

  testing::FakeTokenizer tokenizer_{{"xy"}};
  std::unique_ptr<text::ChatTemplate> chat_ = *text::ChatTemplate::Create(kForgetful, {});
  Frontend frontend_{tokenizer_,
                     chat_.get(),
                     {.vocab_size = 259,
                      .max_model_len = kMaxModelLen,
                      .max_prompt_bytes = 1000,
                      .cache_tokens = 256,
                      .block_size = 16,
                      .max_num_seqs = 4}};
  SessionSeam seam_{frontend_, tokenizer_, kMaxModelLen};
  int64_t kept_ = -1;
};

TEST_F(SessionSeamTest, ATextBeginsASessionWithBosAndOnlyThere) {
  const SessionContent first = Extended({}, std::string("ab"));
  EXPECT_THAT(first.ToIds(), ElementsAre(tokenizer_.bos_id(), 'a', 'b'));
  const SessionContent second = Extended(first, std::string("cd"));
  EXPECT_THAT(second.ToIds(), ElementsAre(tokenizer_.bos_id(), 'a', 'b', 'c', 'd'));
  EXPECT_EQ(kept_, 3);
}

TEST_F(SessionSeamTest, AConversationBeginsWithTheBosOfTheFileAndOnlyThere) {
  text::InputFrame frame = tokenizer_.frame();
  frame.begins_chats = true;
  tokenizer_.set_frame(frame);
  const SessionContent first = Extended({}, ChatMessages{{"user", "q"}});
  EXPECT_EQ(first.ToIds()[0], tokenizer_.bos_id());
  const SessionContent second = Extended(Answered(first, "yes"), ChatMessages{{"user", "r"}});
  EXPECT_GT(kept_, first.num_tokens());
  EXPECT_EQ(std::ranges::count(second.ToIds(), tokenizer_.bos_id()), 1);
  // The template forgets the thoughts of the answer, so all is tokenized again.
  const SessionContent again = Extended(Answered(first, "think#said"), ChatMessages{{"user", "r"}});
  EXPECT_EQ(again.ToIds()[0], tokenizer_.bos_id());
  EXPECT_EQ(std::ranges::count(again.ToIds(), tokenizer_.bos_id()), 1);
}

TEST_F(SessionSeamTest, NoTokenSpansTheBorderOfWhatWasGenerated) {
  const SessionContent content = Answered(Extended({}, TokenIds{'a'}), "x");
  EXPECT_THAT(Extended(content, std::string("y")).ToIds(), ElementsAre('a', 'x', 'y'));
  EXPECT_THAT(Extended(content, std::string("xy")).ToIds(), ElementsAre('a', 'x', kXy));
}

TEST_F(SessionSeamTest, OnlyNewMessagesAreEncodedAndAnswersStayAsDrawn) {
  const SessionContent first = Extended({}, ChatMessages{{"user", "q"}});
  EXPECT_EQ(Text(first), "u:q;a:");
  // The tokenizer would join the two ids.
  const SessionContent answered = Answered(first, "xy");
  const SessionContent second = Extended(answered, ChatMessages{{"user", "xy"}});
  EXPECT_EQ(Text(second), "u:q;a:xy;u:[xy];a:");
  EXPECT_EQ(kept_, answered.num_tokens());
  const SessionContent third = Extended(Answered(second, "z"), ChatMessages{{"user", "r"}});
  EXPECT_EQ(Text(third), "u:q;a:xy;u:[xy];a:z;u:r;a:");
  EXPECT_EQ(kept_, answered.num_tokens() + 8);
}

TEST_F(SessionSeamTest, WhatATemplateDropsIsDroppedAndTheCommonBeginningKept) {
  const SessionContent first = Answered(Extended({}, ChatMessages{{"user", "q"}}), "think#said");
  const SessionContent second = Extended(first, ChatMessages{{"user", "r"}});
  EXPECT_EQ(Text(second), "u:q;a:said;u:r;a:");
  EXPECT_EQ(kept_, 6);
  EXPECT_EQ(Text(first), "u:q;a:think#said") << "the session is as it was";
  EXPECT_NE(second.First(6).conversation(), nullptr);
  EXPECT_EQ(second.First(10).conversation(), nullptr) << "the answer is not there as drawn";
}

TEST_F(SessionSeamTest, AnAppendedMessageIsAnsweredByATurnWithoutOne) {
  const SessionContent appended = Extended({}, ChatMessages{{"system", "s"}}, /*generates=*/false);
  EXPECT_EQ(Text(appended), "s:s;");
  const SessionContent asked = Extended(appended, ChatMessages{{"user", "q"}}, /*generates=*/false);
  EXPECT_EQ(Text(asked), "s:s;u:q;");
  const SessionContent prompt = Extended(asked, TokenIds{});
  EXPECT_EQ(Text(prompt), "s:s;u:q;a:");
  EXPECT_EQ(Text(Extended(prompt, TokenIds{})), "s:s;u:q;a:") << "another try of the same answer";
  const SessionContent answered = Answered(prompt, "half");
  EXPECT_EQ(Text(Extended(answered, TokenIds{})), "s:s;u:q;a:half") << "goes on with the answer";
  const SessionContent more = Answered(Extended(answered, TokenIds{}), "done");
  EXPECT_EQ(Text(Extended(more, ChatMessages{{"user", "r"}})), "s:s;u:q;a:halfdone;u:r;a:");
}

TEST_F(SessionSeamTest, AForkInsideAnAnswerIsAShorterAnswer) {
  const SessionContent answered = Answered(Extended({}, ChatMessages{{"user", "q"}}), "yes");
  for (int64_t n = 6; n <= 9; ++n) {
    const std::string kept = std::string("u:q;a:yes").substr(0, n);
    const SessionContent next = Extended(answered.First(n), ChatMessages{{"user", "r"}});
    EXPECT_EQ(Text(next), n == 6 ? "u:q;u:r;a:" : kept + ";u:r;a:");
  }
}

// The prompts that may follow a session.
const struct {
  PromptContent given;
  bool generates = true;
} kNext[] = {{ChatMessages{{"user", "xyr"}}},
             {ChatMessages{{"user", "r"}}, false},
             {TokenIds{}},
             {TokenIds{'x'}},
             {std::string("yt")},
             {TokenIds{'x'}, false}};

TEST_F(SessionSeamTest, ARestoredSessionGoesOnAsTheFirst) {
  const auto prefix = std::make_shared<PrefixContent>();
  prefix->given = ChatMessages{{"system", "s"}, {"user", "p"}};
  prefix->ids = *frontend_.EncodePrefix(prefix->given);
  const SessionContent bare(prefix, /*owns_prefix=*/true);
  const SessionContent asked = Extended({}, ChatMessages{{"user", "q"}});
  const SessionContent thought = Answered(asked, "think#xy");
  std::vector<SessionContent> contents = {
      {},
      Extended({}, std::string("ab")),
      Extended({}, TokenIds{'a', kXy}),
      asked,
      Answered(asked, "xy"),
      thought,
      Extended(thought, ChatMessages{{"user", "r"}}),
      Answered(Extended(thought, ChatMessages{{"user", "r"}}), "z"),
      Extended({}, ChatMessages{{"system", "s"}}, /*generates=*/false),
      Extended(asked, TokenIds{'x'}),
      bare,
      Extended(bare, TokenIds{}),
      Answered(Extended(bare, ChatMessages{{"user", "q"}}), "xy"),
      Extended(bare, ChatMessages{{"user", "q"}}, /*generates=*/false)};
  for (int64_t n = 5; n < thought.num_tokens(); ++n) contents.push_back(thought.First(n));
  for (size_t i = 0; i < contents.size(); ++i) {
    SCOPED_TRACE(i);
    const SessionContent& first = contents[i];
    ASSERT_TRUE(first.begins_with_prefix());
    const auto again =
        seam_.Restore(first.prefix() == nullptr ? SessionContent() : bare, first.Copy());
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->ToIds(), first.ToIds());
    EXPECT_EQ(again->num_bytes(), first.num_bytes());
    EXPECT_EQ(again->conversation() == nullptr, first.conversation() == nullptr);
    for (const auto& next : kNext) {
      const auto want = seam_.Extend(first, next.given, next.generates);
      const auto got = seam_.Extend(*again, next.given, next.generates);
      ASSERT_EQ(got.status(), want.status());
      if (!want.ok()) continue;
      EXPECT_EQ(got->content.ToIds(), want->content.ToIds());
      EXPECT_EQ(got->kept_tokens, want->kept_tokens);
    }
  }
}

TEST_F(SessionSeamTest, WhatNoSessionCanHaveHadIsNotRestored) {
  const SessionCopy good = Answered(Extended({}, ChatMessages{{"user", "q"}}), "xy").Copy();
  EXPECT_EQ(good.answer_len, 2);
  const auto error = [&](auto change, const SessionContent& prefix = {}) {
    SessionCopy copy = good;
    change(copy);
    const auto restored = seam_.Restore(prefix, copy);
    EXPECT_EQ(restored.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(restored.status().message());
  };
  EXPECT_THAT(error([](SessionCopy& c) { c.ids[3] = 259; }),
              HasSubstr("content.token_ids[3]: want 0..258, got 259"));
  EXPECT_THAT(error([](SessionCopy& c) { c.answer_len = 9; }),
              HasSubstr("content.answer_tokens: want at most the 8 tokens of content, got 9"));
  EXPECT_THAT(error([](SessionCopy& c) { c.messages.reset(); }),
              HasSubstr("content.answer_tokens: want none without content.chat"));
  EXPECT_THAT(error([](SessionCopy& c) { c.messages->clear(); }),
              HasSubstr("chat.messages: want at least one message"));
  EXPECT_THAT(error([](SessionCopy& c) { c.ids.resize(kMaxModelLen); }),
              HasSubstr("content: want at most 63 tokens"));
  const auto prefix = std::make_shared<PrefixContent>();
  prefix->given = std::string("t");
  prefix->ids = {'t'};
  EXPECT_THAT(error([](SessionCopy&) {}, SessionContent(prefix, true)),
              HasSubstr("content.chat: want none, since the prefix was not made of messages"));
  SessionCopy longest = good;
  longest.ids.resize(kMaxModelLen - 1);
  EXPECT_TRUE(seam_.Restore({}, longest).ok());
  longest.answer_len = kMaxModelLen - 1;
  EXPECT_TRUE(seam_.Restore({}, longest).ok());
}

TEST_F(SessionSeamTest, KindsDoNotMixButIdsGoBehindAll) {
  const SessionContent chat = Extended({}, ChatMessages{{"user", "q"}});
  EXPECT_THAT(Error(chat, std::string("t")), HasSubstr("text: want chat or token_ids"));
  const SessionContent ids = Extended(chat, TokenIds{'x'});
  EXPECT_EQ(Text(ids), "u:q;a:x");
  EXPECT_THAT(Error(ids, ChatMessages{{"user", "r"}}), HasSubstr("chat: want text or token_ids"));
  EXPECT_EQ(Text(Extended(ids, std::string("t"))), "u:q;a:xt");
}

TEST_F(SessionSeamTest, NothingIsRefused) {
  EXPECT_THAT(Error({}, TokenIds{}), HasSubstr("prompt: want one of"));
  EXPECT_THAT(Error({}, std::string()), HasSubstr("prompt: want one of"));
  EXPECT_THAT(Error({}, TokenIds{}, false), HasSubstr("content: want at least one token"));
  EXPECT_THAT(Error({}, TokenIds{259}), HasSubstr("token_ids[0]: want 0..258, got 259"));
  EXPECT_THAT(Error({}, TokenIds{-1}), HasSubstr("token_ids[0]: want 0..258, got -1"));
}

TEST_F(SessionSeamTest, ASessionLeavesRoomForOneToken) {
  SessionContent content;
  content.Append(TokenIds(kMaxModelLen - 2, 'a'));
  const SessionContent full = Extended(content, TokenIds{'b'});
  EXPECT_EQ(full.num_tokens(), kMaxModelLen - 1);
  EXPECT_THAT(Error(full, TokenIds{'b'}), HasSubstr("prompt: want at most 63 tokens"));
  EXPECT_THAT(Error(content, TokenIds{'b', 'b'}, false),
              HasSubstr("content: want at most 63 tokens"));
}

}  // namespace
}  // namespace quire::engine
