// Tests the seam between a named prefix and what follows it.

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/frontend/frontend.h"
#include "tests/engine/frontend/test_limits.h"
#include "tests/testing/fake_tokenizer.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class PrefixPromptTest : public ::testing::Test {
 protected:
  std::shared_ptr<PrefixContent> Prefix(const PromptContent& given) {
    auto prefix = std::make_shared<PrefixContent>();
    prefix->tenant = "owner";
    const auto ids = frontend_.EncodePrefix(given);
    EXPECT_TRUE(ids.ok()) << ids.status();
    if (ids.ok()) prefix->ids = *ids;
    prefix->given = given;
    return prefix;
  }
  static void SetUp(Request& request, std::shared_ptr<PrefixContent> prefix,
                    const std::string& tenant = "owner") {
    request.prefix = std::move(prefix);
    request.params.sched.tenant = tenant;
  }

  testing::FakeTokenizer tokenizer_{{"ab", " x"}};
  std::unique_ptr<text::ChatTemplate> chat_ = *text::ChatTemplate::Create(
      "{% if messages[-1].role == 's' %}{{ raise_exception('no user') }}{% endif %}"
      "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
      "{% if add_generation_prompt %}a:{% endif %}",
      {});
  Frontend frontend_{tokenizer_, chat_.get(), kLimits};
};

TEST_F(PrefixPromptTest, TextIsTokenizedTogetherWithThePrefix) {
  Request request;
  SetUp(request, Prefix(std::string("pq")));
  request.params.prompt = "ab";
  request.params.output.echo = true;
  ASSERT_TRUE(frontend_.Prepare(request).ok());
  EXPECT_THAT(request.prompt_ids, ElementsAre(tokenizer_.bos_id(), 'p', 'q', 256));
  EXPECT_EQ(request.prompt_text, "pqab");
}

TEST_F(PrefixPromptTest, ATokenOverTheBorderIsShownToTheOwnerAlone) {
  const auto prefix = Prefix("secret" + std::string(30, 'z') + "a");
  for (const bool is_owner : {true, false}) {
    Request request;
    SetUp(request, prefix, is_owner ? "owner" : "another");
    request.params.prompt = "b" + std::string(25, 'y');
    const absl::Status status = frontend_.Prepare(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    const std::string message(status.message());
    EXPECT_THAT(message, HasSubstr("part at token 37, byte 36"));
    if (is_owner) {
      EXPECT_THAT(message,
                  HasSubstr("the prefix has \"a\", the prompt \"ab" + std::string(25, 'y') + "\""));
    } else {
      EXPECT_THAT(message, Not(HasSubstr("the prefix has")));
    }
  }
}

TEST_F(PrefixPromptTest, TheMessageShows40Bytes) {
  // The prefix was made by another tokenizer, so that it parts at once.
  auto prefix = Prefix(std::string(50, 'p'));
  prefix->ids.assign(50, 'r');
  Request request;
  SetUp(request, prefix);
  request.params.prompt = "";
  const std::string message(frontend_.Prepare(request).message());
  EXPECT_THAT(message, HasSubstr("part at token 0, byte 0"));
  EXPECT_THAT(message, HasSubstr("\"" + std::string(40, 'r') + "\""));
  EXPECT_THAT(message, HasSubstr("\"" + std::string(40, 'p') + "\""));
}

TEST_F(PrefixPromptTest, IdsFollowAnyPrefix) {
  Request request;
  SetUp(request, Prefix(std::string("pa")));
  request.params.prompt = TokenIds{'b'};
  ASSERT_TRUE(frontend_.Prepare(request).ok());
  EXPECT_THAT(request.prompt_ids, ElementsAre(tokenizer_.bos_id(), 'p', 'a', 'b'));
  Request wrong;
  SetUp(wrong, Prefix(TokenIds{'p'}));
  wrong.params.prompt = "text";
  EXPECT_EQ(frontend_.Prepare(wrong).code(), absl::StatusCode::kInvalidArgument);
  Request unknown;
  SetUp(unknown, Prefix(TokenIds{'p'}));
  unknown.params.prompt = TokenIds{300};
  EXPECT_EQ(frontend_.Prepare(unknown).code(), absl::StatusCode::kInvalidArgument);
}

// An earlier version put no BOS before a conversation whose template writes none, and a second one
// before a text that writes it.
TEST_F(PrefixPromptTest, APrefixOfAnEarlierVersionKeepsItsBeginning) {
  const int32_t bos = tokenizer_.bos_id();
  for (const TokenIds& begin : {TokenIds{}, TokenIds{bos, bos}}) {
    const auto prefix = Prefix(std::string("pq"));
    prefix->ids = begin;
    prefix->ids.insert(prefix->ids.end(), {'p', 'q'});
    Request request;
    SetUp(request, prefix);
    request.params.prompt = "ab";
    request.params.continuations = {"r"};
    ASSERT_TRUE(frontend_.Prepare(request).ok());
    TokenIds wanted = prefix->ids;
    wanted.push_back(256);
    EXPECT_EQ(request.prompt_ids, wanted);
    EXPECT_THAT(request.continuation_ids, ElementsAre(ElementsAre('r')));
  }
}

TEST_F(PrefixPromptTest, MessagesAreRenderedTogetherWithThePrefix) {
  const auto prefix = Prefix(ChatMessages{{"s", "be"}});
  // The template refuses the system's message alone. "user:" follows it whoever asks what, but "7"
  // and "x" part.
  const std::string common = "s:be;user:";
  EXPECT_EQ(prefix->ids, TokenIds(common.begin(), common.end()));
  Request request;
  SetUp(request, prefix);
  request.params.prompt = ChatMessages{{"user", "hi"}};
  ASSERT_TRUE(frontend_.Prepare(request).ok());
  const std::string whole = "s:be;user:hi;a:";
  EXPECT_EQ(request.prompt_ids, TokenIds(whole.begin(), whole.end()));
}

TEST_F(PrefixPromptTest, WhatRendersAloneEndsWithIt) {
  const std::string alone = "user:q;";
  EXPECT_EQ(Prefix(ChatMessages{{"user", "q"}})->ids, TokenIds(alone.begin(), alone.end()));
}

TEST_F(PrefixPromptTest, ATokenOfTheNextMessageIsNoPartOfThePrefix) {
  // " x" is one token, so what follows the space differs by the message.
  const auto chat =
      text::ChatTemplate::Create("{% for m in messages %}{{ m.content }} {% endfor %}", {});
  const Frontend frontend(tokenizer_, chat->get(), kLimits);
  const auto ids = frontend.EncodePrefix(ChatMessages{{"s", "be"}});
  EXPECT_THAT(*ids, ElementsAre('b', 'e'));
}

TEST_F(PrefixPromptTest, APrefixHasTokensAndLeavesRoomForOne) {
  EXPECT_EQ(frontend_.EncodePrefix(TokenIds{}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(frontend_.EncodePrefix(TokenIds(63, 'a')).ok());
  EXPECT_EQ(frontend_.EncodePrefix(TokenIds(64, 'a')).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(frontend_.EncodePrefix(TokenIds{300}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(frontend_.EncodePrefix(std::string(101, 'a')).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(PrefixPromptTest, WhatNamedPrefixesHoldIsNotPromised) {
  FrontendLimits limits = kLimits;
  limits.max_model_len = 1000;
  limits.num_pinned_blocks = [] { return int64_t{6}; };  // of 16
  const Frontend frontend(tokenizer_, chat_.get(), limits);
  Request request;
  request.params.prompt = TokenIds(60, 'a');
  ASSERT_TRUE(frontend.Prepare(request).ok());
  EXPECT_EQ(request.max_tokens, 100);
  request.params.stop.max_tokens = 101;
  EXPECT_EQ(frontend.Prepare(request).code(), absl::StatusCode::kResourceExhausted);
  request.params.stop.max_tokens = 197;
  EXPECT_EQ(frontend.Prepare(request).code(), absl::StatusCode::kInvalidArgument);
  SetUp(request, Prefix(TokenIds(33, 'a')));
  request.params.prompt = TokenIds(27, 'a');
  request.params.stop.max_tokens = 132;  // two blocks are the prefix's
  EXPECT_TRUE(frontend.Prepare(request).ok());
  request.params.stop.max_tokens = 133;
  EXPECT_EQ(frontend.Prepare(request).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace quire::engine
