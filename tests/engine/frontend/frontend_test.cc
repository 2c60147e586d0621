#include "engine/frontend/frontend.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/engine/frontend/test_limits.h"
#include "tests/testing/fake_tokenizer.h"
#include "text/tokenizer/gguf_vocabulary.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class FrontendTest : public ::testing::Test {
 protected:
  testing::FakeTokenizer tokenizer_;
  std::unique_ptr<text::ChatTemplate> chat_ = *text::ChatTemplate::Create(
      "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}", {});
  Frontend frontend_{tokenizer_, chat_.get(), kLimits};
};

TEST_F(FrontendTest, TextIsTokenizedAndResolvedToTheContextsEnd) {
  Request request;
  request.params.prompt = "ab";
  ASSERT_TRUE(frontend_.Prepare(request).ok());
  EXPECT_THAT(request.prompt_ids, ElementsAre(tokenizer_.bos_id(), 'a', 'b'));
  EXPECT_EQ(request.max_tokens, 61);
  EXPECT_EQ(request.prompt_text, "");
}

TEST_F(FrontendTest, MaxTokensIsABound) {
  Request request;
  request.params.prompt = "ab";
  for (const auto& [given, resolved] :
       {std::pair(1, 1), {60, 60}, {61, 61}, {62, 61}, {1 << 30, 61}}) {
    request.params.stop.max_tokens = given;
    ASSERT_TRUE(frontend_.Prepare(request).ok()) << given;
    EXPECT_EQ(request.max_tokens, resolved);
  }
  for (const std::optional<int32_t>& given : {std::optional<int32_t>(), {100}}) {
    request.params.stop.max_tokens = given;
    request.params.stop.min_tokens = 61;
    EXPECT_TRUE(frontend_.Prepare(request).ok());
    request.params.stop.min_tokens = 62;
    EXPECT_THAT(std::string(frontend_.Prepare(request).message()),
                StartsWith("stop.min_tokens: want at most 61 tokens"));
  }
  request.params.stop.min_tokens = 0;
  request.params.prompt = TokenIds(64, 'a');
  EXPECT_THAT(std::string(frontend_.Prepare(request).message()),
              StartsWith("prompt: want at most 63 tokens"));
  // A bound counts as absent, so the output ends where the cache ends.
  FrontendLimits limits = kLimits;
  limits.cache_tokens = 48;
  const Frontend frontend(tokenizer_, nullptr, limits);
  request.params.prompt = TokenIds(20, 'a');
  request.params.stop.max_tokens = 45;
  ASSERT_TRUE(frontend.Prepare(request).ok());
  EXPECT_EQ(request.max_tokens, 28);
  request.params.stop.min_tokens = 29;
  EXPECT_THAT(std::string(frontend.Prepare(request).message()),
              StartsWith("stop.min_tokens: want prompt + max_tokens x n to fit the KV cache"));
}

TEST_F(FrontendTest, AResumedStreamHasItsTokensOrIsRefusedWithBothNumbers) {
  Request request;
  request.params.prompt = "ab";
  request.params.resume.emplace().max_tokens_is_resolved = true;
  request.params.stop.max_tokens = 61;
  ASSERT_TRUE(frontend_.Prepare(request).ok());
  EXPECT_EQ(request.max_tokens, 61);
  request.params.stop.max_tokens = 62;
  absl::Status status = frontend_.Prepare(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(StartsWith("resume_resolved.max_tokens: "),
                                                   HasSubstr("62 tokens"), HasSubstr("leaves 61")));
  FrontendLimits limits = kLimits;
  limits.cache_tokens = 48;
  request.params.stop.max_tokens = 50;
  status = Frontend(tokenizer_, nullptr, limits).Prepare(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("50 tokens"), HasSubstr("leaves 45")));
  request.params.resume->max_tokens_is_resolved = false;
  EXPECT_TRUE(frontend_.Prepare(request).ok()) << "without it, the request's own bound holds";
}

TEST_F(FrontendTest, AnAnswerThatCannotFitOneMessageIsRefused) {
  const auto refused = [&](auto change) {
    Request request;
    request.params.prompt = TokenIds(30, 'a');
    request.params.answers_at_once = true;
    request.params.max_answer_bytes = 1000;
    change(request.params);
    const absl::Status status = frontend_.Prepare(request);
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refused([](auto& p) {
              p.sampling.n = 4;
              p.output.top_logprobs = 20;
            }),
            "")
      << "it may be short";
  EXPECT_THAT(refused([](auto& p) {
                p.sampling.n = 4;
                p.output.top_logprobs = 20;
                p.stop.min_tokens = 2;
              }),
              AllOf(StartsWith("stop.min_tokens: want an answer of at most 1000 bytes"),
                    HasSubstr("use GenerateStream")));
  EXPECT_THAT(refused([](auto& p) {
                p.output.top_logprobs = 20;
                p.stop.ignore_eos = true;
                p.stop.max_tokens = 6;
              }),
              StartsWith("stop.max_tokens: want an answer of at most 1000 bytes"));
  EXPECT_EQ(refused([](auto& p) {
              p.output.top_logprobs = 20;
              p.stop.ignore_eos = true;
              p.stop.max_tokens = 6;
              p.stop.stop = {"x"};
            }),
            "");
  EXPECT_THAT(refused([](auto& p) { p.output.prompt_logprobs = 5; }),
              StartsWith("output.prompt_logprobs: want an answer of at most 1000 bytes"));
  EXPECT_THAT(refused([](auto& p) {
                p.continuations =
                    std::vector<std::variant<std::string, TokenIds>>(4, TokenIds(20, 'a'));
                p.max_answer_bytes = 319;
              }),
              AllOf(StartsWith("continuations: want an answer of at most 319 bytes"),
                    HasSubstr("at least 320; score fewer continuations at once")));
}

TEST_F(FrontendTest, AChatIsRenderedAndGetsNoSecondBos) {
  Request request;
  request.params.prompt = ChatMessages{{"u", "x"}};
  request.params.output.echo = true;
  ASSERT_TRUE(frontend_.Prepare(request).ok());
  EXPECT_THAT(request.prompt_ids, ElementsAre('u', ':', 'x', ';'));
  EXPECT_EQ(request.prompt_text, "u:x;");
}

// The prompts that a GGUF file with add_bos_token and add_eos_token gets, for a template that
// writes BOS and one that does not.
TEST(FrontendFrameTest, AChatBeginsWithTheFilesBosOnceAndNoPromptEndsWithEos) {
  const auto tokenizer =
      text::CreateTokenizer(text::GgufVocabulary{.model = "gpt2",
                                                 .pre = "gpt-2",
                                                 .tokens = {"a", "b", "<s>", "</s>"},
                                                 .token_types = {1, 1, 3, 3},
                                                 .bos_id = 2,
                                                 .eos_id = 3,
                                                 .add_bos = true,
                                                 .add_eos = true});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const std::string bos : {"", "{{ bos_token }}"}) {
    const auto chat = *text::ChatTemplate::Create(
        bos + "{% for m in messages %}{{ m.content }}{% endfor %}", {{"bos_token", "<s>"}});
    const Frontend frontend(**tokenizer, chat.get(), kLimits);
    Request request;
    request.params.prompt = ChatMessages{{"user", "ab"}};
    request.params.output.echo = true;
    ASSERT_TRUE(frontend.Prepare(request).ok());
    EXPECT_THAT(request.prompt_ids, ElementsAre(2, 0, 1));
    EXPECT_EQ(request.prompt_text, "<s>ab");
    EXPECT_EQ(frontend.ApplyChatTemplate({{"user", "ab"}}, /*add_generation_prompt=*/true)->text,
              "<s>ab");
    const auto prefix = frontend.EncodePrefix(ChatMessages{{"user", "ab"}});
    ASSERT_TRUE(prefix.ok()) << prefix.status();
    EXPECT_THAT(*prefix, ElementsAre(2, 0, 1));

    request.params.prompt = "ab";
    request.params.continuations = {"ba", TokenIds{0}};
    ASSERT_TRUE(frontend.Prepare(request).ok());
    EXPECT_THAT(request.prompt_ids, ElementsAre(2, 0, 1));
    EXPECT_THAT(request.continuation_ids, ElementsAre(ElementsAre(1, 0), ElementsAre(0)));
    request.params.prompt = TokenIds{1};
    ASSERT_TRUE(frontend.Prepare(request).ok());
    EXPECT_THAT(request.prompt_ids, ElementsAre(1));
    EXPECT_THAT(request.continuation_ids, ElementsAre(ElementsAre(1, 0), ElementsAre(0)));
  }
}

TEST_F(FrontendTest, EverySampleFitsBesideTheOthers) {
  // The four samples share the first block of the prompt. Each sample stores the other 4 prompt
  // tokens in its own blocks. A sample gets 3 blocks of its own if the cache has 13 blocks, and 2
  // if it has 12.
  for (const auto& [num_blocks, longest] : {std::pair(13, 44), std::pair(12, 28)}) {
    FrontendLimits limits = kLimits;
    limits.cache_tokens = num_blocks * limits.block_size;
    limits.max_model_len = 256;
    const Frontend frontend(tokenizer_, nullptr, limits);
    Request request;
    request.params.prompt = TokenIds(20, 'a');
    request.params.sampling.n = 4;
    ASSERT_TRUE(frontend.Prepare(request).ok());
    EXPECT_EQ(request.max_tokens, longest);
    request.params.stop.max_tokens = longest + 1;
    EXPECT_FALSE(frontend.Prepare(request).ok());
  }
}

TEST_F(FrontendTest, ASeedIsKeptOrDrawn) {
  Request request;
  request.params.prompt = TokenIds{1};
  request.params.sampling.seed = 5;
  ASSERT_TRUE(frontend_.Prepare(request).ok());
  EXPECT_EQ(request.seed, 5u);
  request.params.sampling.seed.reset();
  ASSERT_TRUE(frontend_.Prepare(request).ok());
  const uint64_t first = request.seed;
  ASSERT_TRUE(frontend_.Prepare(request).ok());
  EXPECT_NE(request.seed, first);
}

TEST_F(FrontendTest, RefusesWithTheFieldAndTheNumbers) {
  const auto refused = [&](auto change) {
    Request request;
    request.params.prompt = "ab";
    change(request.params);
    const absl::Status status = frontend_.Prepare(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused([](auto& p) { p.prompt = std::string(101, 'a'); }),
              HasSubstr("at most 100 bytes"));
  EXPECT_THAT(refused([](auto& p) {
                p.prompt = ChatMessages{{"u", std::string(101, 'a')}};
              }),
              HasSubstr("at most 100 bytes"));
  EXPECT_THAT(refused([](auto& p) { p.prompt = ChatMessages{}; }),
              HasSubstr("at least one message"));
  EXPECT_THAT(refused([](auto& p) {
                p.prompt = TokenIds{1, -1};
              }),
              HasSubstr("token_ids[1]: want 0..299, got -1"));
  EXPECT_THAT(refused([](auto& p) { p.stop.min_tokens = 62; }),
              AllOf(StartsWith("stop.min_tokens"), HasSubstr("at most 61"), HasSubstr("got 62")));
  EXPECT_THAT(refused([](auto& p) { p.sampling.n = 5; }), HasSubstr("max_num_seqs (4)"));
  EXPECT_THAT(refused([](auto& p) { p.sampling.top_p = 2; }), HasSubstr("sampling.top_p"));
}

// Some tokenizers have more tokens than the model's vocabulary, for example image tokens.
TEST_F(FrontendTest, ATextThatHasTokensBeyondTheModelsIsRefused) {
  FrontendLimits limits = kLimits;
  limits.vocab_size = 'b';
  const Frontend frontend(tokenizer_, chat_.get(), limits);
  Request request;
  const auto refused = [&] { return std::string(frontend.Prepare(request).message()); };
  request.params.prompt = ChatMessages{{"`", ""}};
  EXPECT_EQ(refused(), "");
  request.params.prompt = ChatMessages{{"a", "b"}};
  EXPECT_EQ(refused(), "prompt: tokens[2]: want 0..97, got 98");
  request.params.prompt = TokenIds{'a'};
  request.params.continuations = {"ab"};
  EXPECT_EQ(refused(), "continuations[0][1]: want 0..97, got 98");
}

TEST_F(FrontendTest, AContinuationIsWhatTheWholeTextHasBehindThePrompt) {
  const testing::FakeTokenizer tokenizer({"ab", "bc", " x"});
  const Frontend frontend(tokenizer, chat_.get(), kLimits);
  Request request;
  request.params.prompt = "ab";
  request.params.continuations = {"bcd", TokenIds{7, 8}, " x"};
  ASSERT_TRUE(frontend.Prepare(request).ok());
  ASSERT_EQ(request.continuation_ids.size(), 3u);
  EXPECT_THAT(request.continuation_ids[0], ElementsAre(257, 'd'));
  EXPECT_THAT(request.continuation_ids[1], ElementsAre(7, 8));
  EXPECT_THAT(request.continuation_ids[2], ElementsAre(258));
  EXPECT_EQ(request.params.sampling.n, 3);
  EXPECT_EQ(request.max_tokens, 2);
  // The continuation of a chat directly follows the text of the chat template. Neither text gets a
  // prefix such as a BOS token.
  request.params.prompt = ChatMessages{{"u", "a"}};
  request.params.continuations = {"b"};
  ASSERT_TRUE(frontend.Prepare(request).ok());
  EXPECT_THAT(request.continuation_ids[0], ElementsAre('b'));
  request.params.prompt = TokenIds{'a'};
  ASSERT_TRUE(frontend.Prepare(request).ok());
  EXPECT_THAT(request.continuation_ids[0], ElementsAre('b')) << "by itself, not as \"ab\"";
}

TEST_F(FrontendTest, RefusesContinuationsWithTheFieldAndTheCure) {
  const testing::FakeTokenizer tokenizer({"ab", " x"});
  const Frontend frontend(tokenizer, chat_.get(), kLimits);
  const auto refused = [&](auto... continuations) {
    Request request;
    request.params.prompt = "a ";
    request.params.continuations = {continuations...};
    const absl::Status status = frontend.Prepare(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused("b", "x"), AllOf(StartsWith("continuations[1]: "),
                                       HasSubstr("move white space from the prompt's end")));
  EXPECT_THAT(refused("b", ""), AllOf(StartsWith("continuations[1]: "), HasSubstr("got none")));
  EXPECT_THAT(refused(TokenIds{}), StartsWith("continuations[0]: "));
  EXPECT_THAT(refused(TokenIds{1, 300}), StartsWith("continuations[0][1]: want 0..299, got 300"));
  EXPECT_THAT(refused("1", "2", "3", "4", "5"),
              AllOf(StartsWith("continuations: want at most 4"), HasSubstr("got 5")));
  EXPECT_THAT(refused(std::string(50, 'y'), std::string(50, 'z')),
              AllOf(StartsWith("continuations[1]: "), HasSubstr("100 bytes (max_prompt_bytes)")));
  EXPECT_THAT(refused(TokenIds(62, 'a')),
              AllOf(StartsWith("continuations: want at most 61 tokens"), HasSubstr("got 62")));
}

TEST_F(FrontendTest, WhatCannotFitTheCacheNamesItsFieldFirst) {
  FrontendLimits limits = kLimits;
  limits.cache_tokens = 48;
  const Frontend frontend(tokenizer_, nullptr, limits);
  Request request;
  request.params.prompt = TokenIds(20, 'a');
  request.params.sampling.n = 2;
  request.params.stop.max_tokens = 40;
  EXPECT_EQ(
      std::string(frontend.Prepare(request).message()),
      "stop.max_tokens: want prompt + max_tokens x n to fit the KV cache of 48 tokens, got 20 "
      "+ 40 x 2");
  request.params.stop.max_tokens.reset();
  request.params.prompt = TokenIds(48, 'a');
  EXPECT_THAT(std::string(frontend.Prepare(request).message()),
              AllOf(StartsWith("prompt: "), HasSubstr("48 tokens, got 48 + 1 x 2")));
}

TEST_F(FrontendTest, ATemplateMayRefuseAConversation) {
  const auto chat = *text::ChatTemplate::Create(
      "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('no ' + m.role) }}"
      "{% endif %}{{ m.content }}{% endfor %}",
      {});
  const Frontend frontend(tokenizer_, chat.get(), kLimits);
  EXPECT_EQ(frontend.ApplyChatTemplate({{"user", "x"}}, true).value().text, "x");
  Request request;
  request.params.prompt = ChatMessages{{"user", "x"}, {"tool", "y"}};
  EXPECT_EQ(frontend.Prepare(request), absl::InvalidArgumentError("chat.messages: no tool"));
}

// Counts the bytes that it is asked to tokenize.
class CountingTokenizer final : public testing::FakeTokenizer {
 public:
  absl::StatusOr<std::vector<text::EncodedToken>> Encode(
      std::string_view text, const text::EncodeOptions& options) const override {
    num_bytes += std::ssize(text);
    return FakeTokenizer::Encode(text, options);
  }
  mutable int64_t num_bytes = 0;
};

TEST_F(FrontendTest, ATextThatCannotFitIsNeverTokenized) {
  const CountingTokenizer tokenizer;
  FrontendLimits limits = kLimits;
  limits.max_prompt_bytes = 1 << 20;
  const Frontend frontend(tokenizer, chat_.get(), limits);
  const int64_t most = limits.max_model_len * tokenizer.max_token_bytes();
  const auto message = [&](auto fill) {
    Request request;
    fill(request.params);
    const absl::Status status = frontend.Prepare(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const std::string text(most + 1, 'a');
  EXPECT_THAT(message([&](auto& p) { p.prompt = text; }), StartsWith("prompt: want at most 256 "));
  EXPECT_THAT(message([&](auto& p) {
                p.prompt = ChatMessages{{"u", text}};
              }),
              StartsWith("prompt: want at most 256 "));
  EXPECT_EQ(tokenizer.num_bytes, 0);
  EXPECT_THAT(message([&](auto& p) {
                p.prompt = "ab";
                p.continuations = {text};
              }),
              StartsWith("continuations[0]: want at most 256 "));
  EXPECT_EQ(tokenizer.num_bytes, 2);
  // A text of this length may fit the token limit, so the frontend tokenizes it.
  EXPECT_THAT(message([&](auto& p) { p.prompt = std::string(most, 'a'); }),
              StartsWith("prompt: want at most 63 tokens"));
  EXPECT_EQ(tokenizer.num_bytes, 2 + most);
}

TEST_F(FrontendTest, RolesAndMessagesCountAsText) {
  EXPECT_EQ(frontend_.ApplyChatTemplate({{std::string(101, 'r'), ""}}, true).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(frontend_.ApplyChatTemplate(ChatMessages(2), true).ok());
  EXPECT_THAT(std::string(frontend_.ApplyChatTemplate(ChatMessages(3), true).status().message()),
              AllOf(StartsWith("chat.messages: want at most 100 bytes"), HasSubstr("got 128")));
}

TEST_F(FrontendTest, AnAnswerInOneMessageIsBounded) {
  Request request;
  request.params.prompt = TokenIds{1};
  request.params.cache.window_tokens = 17;
  request.params.sampling.n = 2;
  request.params.stop.max_tokens = 1 << 18;
  EXPECT_TRUE(frontend_.Prepare(request).ok()) << "it is read as it comes";
  request.params.answers_at_once = true;
  EXPECT_THAT(std::string(frontend_.Prepare(request).message()),
              AllOf(StartsWith("stop.max_tokens: want at most 131072 tokens"),
                    HasSubstr("use GenerateStream")));
  request.params.stop.max_tokens.reset();
  ASSERT_TRUE(frontend_.Prepare(request).ok());
  EXPECT_EQ(request.max_tokens, 131072);
}

TEST_F(FrontendTest, ADecodedTextIsBounded) {
  EXPECT_EQ(frontend_.Decode(TokenIds(100, 'a'), true).value(), std::string(100, 'a'));
  EXPECT_THAT(std::string(frontend_.Decode(TokenIds(101, 'a'), true).status().message()),
              AllOf(StartsWith("token_ids: want"), HasSubstr("100 bytes"), HasSubstr("got 101")));
  EXPECT_THAT(std::string(frontend_.Decode({-1}, true).status().message()),
              StartsWith("token_ids[0]: want"));
}

TEST_F(FrontendTest, IdListsBecomeSetsHoweverOftenTheyRepeat) {
  Request request;
  request.params.prompt = TokenIds{1};
  request.params.sampling.allowed_token_ids = {7, 64, 7, 257, 7};
  request.params.stop.stop_token_ids = {0, 0};
  ASSERT_TRUE(frontend_.Prepare(request).ok());
  std::vector<int64_t> allowed;
  request.allowed_ids.ForEachBelow(1000, [&](int64_t id) { allowed.push_back(id); });
  EXPECT_THAT(allowed, ElementsAre(7, 64, 257));
  EXPECT_TRUE(request.stop_ids.Contains(0));
  EXPECT_FALSE(request.stop_ids.Contains(1));
  EXPECT_FALSE(request.stop_ids.Contains(100000));
}

TEST_F(FrontendTest, AModelWithoutATemplateSaysSo) {
  const Frontend without(tokenizer_, nullptr, kLimits);
  EXPECT_EQ(without.ApplyChatTemplate({{"u", "x"}}, true).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace quire::engine
