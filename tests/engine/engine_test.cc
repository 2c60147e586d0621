#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/request/answer_size.h"
#include "engine/request/retry_after.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/fake_tokenizer.h"
#include "tests/testing/step_gate.h"

namespace quire::engine {
namespace {

using testing::CollectingSink;
using testing::EngineHarness;
using testing::FakeModel;
using testing::GreedyParams;
using ::testing::HasSubstr;
using testing::RandomIds;
using testing::StepGate;

TEST(EngineTest, AnswersWithWhatTheModelSays) {
  const auto harness = EngineHarness::Fake();
  TokenIds context = RandomIds(20, 1);
  const auto sink = harness->Submit(GreedyParams(context, 9));
  ASSERT_TRUE(sink->WaitFinished());
  for (const int32_t id : sink->sample().token_ids) {
    EXPECT_EQ(id, harness->fake()->NextToken(context));
    context.push_back(id);
  }
  EXPECT_EQ(context.size(), 29);
  EXPECT_EQ(sink->sample().finish_reason, FinishReason::kLength);
  const Usage usage = sink->summary().usage;
  EXPECT_EQ(usage.prompt_tokens, 20);
  EXPECT_EQ(usage.completion_tokens, 9);
  EXPECT_EQ(usage.cached_tokens, 0);
  EXPECT_EQ(harness->engine().stats().generated_tokens, 9);
  EXPECT_EQ(sink->num_after_finish(), 0);
}

// Models pad their vocabulary with ids for which the tokenizer has no piece.
TEST(EngineTest, APaddedVocabularyIsScoredWholeAndItsPaddingNeverDrawn) {
  constexpr int64_t kPadding = 6;
  const auto harness = EngineHarness::Fake({.num_padding = kPadding});
  const int32_t vocab_size = static_cast<int32_t>(harness->fake()->config().vocab_size);
  TokenIds context = {vocab_size - 1, 'a', vocab_size - 2};  // each is an id of the model
  GenerateParams params = GreedyParams(context, 5);
  params.sampling.repetition_penalty = 2.0f;
  params.sampling.logit_bias = {{.token_id = vocab_size - 1, .bias = 100.0f}};
  params.output.prompt_logprobs = 0;
  params.output.echo = true;
  const auto sink = harness->Submit(std::move(params));
  ASSERT_TRUE(sink->WaitFinished());
  ASSERT_TRUE(sink->status().ok()) << sink->status();
  const CollectingSink::Sample sample = sink->sample();
  ASSERT_EQ(sample.token_ids.size(), 5u);
  EXPECT_EQ(sample.text.substr(0, 1), "a") << "padding writes nothing";
  const double others = static_cast<double>(vocab_size - 4);
  const double sum = others + std::exp(7.0) + std::exp(7.5) + std::exp(8.0) + std::exp(9.0);
  for (size_t i = 0; i < 5; ++i) {
    const int32_t id = sample.token_ids[i];
    EXPECT_LT(id, vocab_size - kPadding);
    const PositionLogprobs& logprobs = sample.logprobs[i];
    ASSERT_EQ(logprobs.top.size(), 5u);
    EXPECT_EQ(logprobs.top[0].token_id, vocab_size - 1);
    EXPECT_NEAR(logprobs.top[0].logprob, FakeModel::kPaddingLogit - std::log(sum), 1e-5);
    EXPECT_EQ(logprobs.top[1].token_id, harness->fake()->NextToken(context));
    EXPECT_NEAR(logprobs.top[1].logprob, FakeModel::kBestLogit - std::log(sum), 1e-5);
    context.push_back(id);
  }
}

TEST(EngineTest, OneVocabularySizeForEveryId) {
  const auto harness = EngineHarness::Fake({.num_padding = 6});
  const int32_t vocab_size = static_cast<int32_t>(harness->fake()->config().vocab_size);
  const auto status_of = [&](auto change) {
    GenerateParams params = GreedyParams({1, 2}, 2);
    change(params);
    const auto sink = harness->Submit(std::move(params));
    EXPECT_TRUE(sink->WaitFinished());
    return sink->status();
  };
  for (const int32_t past : {0, 1}) {
    const int32_t id = vocab_size - 1 + past;
    for (const absl::Status& status :
         {status_of([&](auto& p) { p.prompt = TokenIds{id}; }),
          status_of([&](auto& p) { p.continuations = {TokenIds{id}}; }),
          status_of([&](auto& p) { p.sampling.logit_bias = {{.token_id = id, .bias = 1.0f}}; }),
          status_of([&](auto& p) {
            p.sampling.allowed_token_ids = {id, 7};
          }),
          status_of([&](auto& p) { p.stop.stop_token_ids = {id}; }),
          harness->engine().Detokenize({id}, true).status()}) {
      EXPECT_EQ(status.ok(), past == 0) << status;
      if (past == 0) continue;
      EXPECT_THAT(status.message(), HasSubstr("0..263, got 264"));
    }
  }
  EXPECT_THAT(
      status_of([&](auto& p) { p.sampling.allowed_token_ids = {vocab_size - 1}; }).message(),
      HasSubstr("no id is left to draw"));
}

TEST(EngineTest, KeysAndValuesBeyondF16AreNamedWithTheCure) {
  constexpr float kGain = 1e6f;  // makes values of about 1 larger than 65504, the limit of f16
  ::testing::internal::CaptureStderr();
  const auto harness = EngineHarness::TinyLlama({.value_gain = kGain});
  const std::string log = ::testing::internal::GetCapturedStderr();
  const auto cure = ::testing::AllOf(HasSubstr("the values of layer 1 are not finite in the f16"),
                                     HasSubstr("--kv_dtype bf16"));
  EXPECT_THAT(log, cure) << "told when the model loads";
  GenerateParams scored = GreedyParams(RandomIds(20, 1), 1);
  scored.continuations = {RandomIds(3, 2)};
  for (GenerateParams params : {GreedyParams(RandomIds(40, 1), 3), scored}) {
    const auto sink = harness->Submit(std::move(params));
    ASSERT_TRUE(sink->WaitFinished());
    EXPECT_EQ(sink->status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(sink->status().message()), cure);
    EXPECT_EQ(sink->summary().usage.cached_tokens, 0);
  }
  const auto again = harness->Submit(GreedyParams(RandomIds(40, 1), 3));
  ASSERT_TRUE(again->WaitFinished());
  EXPECT_EQ(again->summary().usage.cached_tokens, 0) << "no one may start from such blocks";
  const auto wide =
      EngineHarness::TinyLlama({.value_gain = kGain, .kv_dtype = kernels::DType::kBF16});
  EXPECT_EQ(wide->Generate(GreedyParams(RandomIds(40, 1), 3)).token_ids.size(), 3u);
}

// The largest number of e4m3 is 448, and larger values become 448. Only values that are not finite
// before they are stored end a request.
TEST(EngineTest, AnFp8CacheSaturatesAndNamesWhatIsNotFinite) {
  constexpr kernels::DType kFp8 = kernels::DType::kF8E4M3;
  const GenerateParams params = GreedyParams(RandomIds(40, 1), 3);
  const auto large = EngineHarness::TinyLlama({.value_gain = 1e6f, .kv_dtype = kFp8});
  EXPECT_EQ(large->Generate(params).token_ids.size(), 3u);
  // The products of the second layer's value weights overflow float32.
  const auto infinite = EngineHarness::TinyLlama({.value_gain = 1e38f, .kv_dtype = kFp8});
  const auto sink = infinite->Submit(params);
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(sink->status().message()),
              HasSubstr("the values of layer 1 are not finite in the fp8_e4m3 KV cache: the "
                        "model's weights make them so"));
}

TEST(EngineTest, EchoOfIdsThatEndInsideACharacterGivesItWhole) {
  const auto harness = EngineHarness::Fake();
  GenerateParams params = GreedyParams({'X', 0xC3}, 1);
  params.output.echo = true;
  params.sampling.allowed_token_ids = {0xA9};
  EXPECT_EQ(harness->Generate(params).text, "X\u00e9");
  params.sampling.allowed_token_ids = {'b'};
  EXPECT_EQ(harness->Generate(params).text, "X\ufffdb");
}

TEST(EngineTest, AStepIsNeverLargerThanItsBudget) {
  const auto harness = EngineHarness::Fake({.max_num_seqs = 8, .max_num_batched_tokens = 24});
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (uint32_t i = 0; i < 12; ++i)
    sinks.push_back(harness->Submit(GreedyParams(RandomIds(70, i), 30)));
  for (const auto& sink : sinks) ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(harness->fake()->max_step_tokens, 24);
}

TEST(EngineTest, RefusesAtOnceWhatItCannotTake) {
  const auto harness = EngineHarness::Fake({.num_blocks = 16, .max_num_seqs = 1, .max_queue = 2});
  StepGate gate(*harness);
  const auto sink = std::make_shared<CollectingSink>();
  GenerateParams params = GreedyParams(RandomIds(20, 1), 5);

  params.model = "another";
  EXPECT_EQ(harness->engine().Submit(params, sink).status().code(), absl::StatusCode::kNotFound);

  params.model = "tiny";
  const auto running = harness->Submit(params);
  ASSERT_TRUE(gate.WaitForStep());
  const auto second = harness->Submit(params), third = harness->Submit(params);
  EXPECT_EQ(harness->engine().Submit(params, sink).status().code(),
            absl::StatusCode::kResourceExhausted);

  harness->engine().StartDrain();
  EXPECT_EQ(harness->engine().Submit(params, sink).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(harness->engine().WaitIdle(absl::Milliseconds(1)).code(),
            absl::StatusCode::kDeadlineExceeded);
  gate.Open();
  ASSERT_TRUE(harness->engine().WaitIdle(absl::Seconds(30)).ok());
  for (const auto& accepted : {running, second, third}) {
    ASSERT_TRUE(accepted->WaitFinished());
    EXPECT_TRUE(accepted->status().ok()) << accepted->status();
  }
  EXPECT_EQ(sink->num_deltas(), 0);
  EXPECT_EQ(harness->engine().stats().requests_rejected, 3);
}

TEST(EngineTest, ATenantIsChargedForWhatItsRequestsComputed) {
  const auto harness = EngineHarness::Fake({.max_num_seqs = 1});
  engine::Engine& engine = harness->engine();
  GenerateParams params = GreedyParams(RandomIds(33, 1), 5);
  params.sched.tenant = "acme";
  params.limits = {.requests_per_minute = 100, .tokens_per_minute = 1000};
  const auto served = [&] {
    return engine.tenant_usage("acme", params.limits).counts.served_tokens;
  };
  harness->Generate(params);
  EXPECT_EQ(served(), 38u);
  harness->Generate(params);  // 32 tokens of its prompt are cached
  EXPECT_EQ(served(), 38u + 6u);

  StepGate gate(*harness);
  const auto running = harness->Submit(params);
  ASSERT_TRUE(gate.WaitForStep());
  const auto sink = std::make_shared<CollectingSink>();
  const auto waiting = engine.Submit(params, sink);
  ASSERT_TRUE(waiting.ok());
  EXPECT_EQ(engine.tenant_usage("acme", params.limits).num_requests, 2);
  harness->WaitForFrontend();  // otherwise a frontend thread may end the request
  (*waiting)->Cancel();
  gate.Open();
  ASSERT_TRUE(running->WaitFinished() && sink->WaitFinished());
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(served(), 38u + 6u + 6u) << "the request that never ran owes nothing";

  const TenantUsages all = engine.tenant_usages();
  ASSERT_EQ(all.tenants.size(), 1u);
  EXPECT_EQ(all.tenants[0].name, "acme");
  EXPECT_EQ(all.tenants[0].num_requests, 0);
  EXPECT_EQ(all.tenants[0].counts.requests, 4u);
  // In some milliseconds a bucket of 1000 a minute gains less than a token.
  EXPECT_NEAR(all.tenants[0].tokens_left, 1000 - 50, 50);
}

TEST(EngineTest, LengthsThatCannotFitNameTheNumbers) {
  const auto harness = EngineHarness::Fake({.num_blocks = 16, .max_model_len = 200});
  const auto refused = [&](GenerateParams params) {
    const auto sink = harness->Submit(std::move(params));
    EXPECT_TRUE(sink->WaitFinished());
    EXPECT_EQ(sink->status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(sink->status().message());
  };
  EXPECT_THAT(refused(GreedyParams(RandomIds(200, 1), 1)),
              AllOf(HasSubstr("at most 199 tokens"), HasSubstr("got 200")));
  GenerateParams least = GreedyParams(RandomIds(100, 1), 101);
  least.stop.min_tokens = 101;
  EXPECT_THAT(refused(least), AllOf(HasSubstr("at most 100"), HasSubstr("got 101")));
  GenerateParams many = GreedyParams(RandomIds(100, 1), 90);
  many.sampling.n = 8;
  EXPECT_THAT(refused(many), AllOf(HasSubstr("256 tokens"), HasSubstr("100 + 90 x 8")));
  EXPECT_THAT(refused(GreedyParams({}, 5)), HasSubstr("at least one token"));
  EXPECT_THAT(refused(GreedyParams({7, 999}, 5)), HasSubstr("token_ids[1]"));
}

TEST(EngineTest, SamplesThatJustFitTheCacheRunSideBySide) {
  const auto harness = EngineHarness::Fake({.num_blocks = 13});
  GenerateParams params = GreedyParams(RandomIds(20, 1), 44);
  params.sampling.n = 4;
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_TRUE(sink->status().ok()) << sink->status();
  EXPECT_EQ(sink->summary().usage.completion_tokens, 4 * 44);
  EXPECT_EQ(harness->engine().stats().preemptions, 0);
}

TEST(EngineTest, WithoutMaxTokensGoesToTheContextsEnd) {
  const auto harness = EngineHarness::Fake({.max_model_len = 100});
  GenerateParams params = GreedyParams(RandomIds(20, 1), 1);
  params.stop.max_tokens.reset();
  const CollectingSink::Sample sample = harness->Generate(params);
  EXPECT_EQ(sample.token_ids.size(), 80);
  EXPECT_EQ(sample.finish_reason, FinishReason::kLength);
}

TEST(EngineTest, ABoundBeyondTheContextEndsWhereTheContextEnds) {
  const auto harness = EngineHarness::Fake({.max_model_len = 100});
  GenerateParams params = GreedyParams(RandomIds(20, 1), 1000);
  params.sampling.n = 2;
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_TRUE(sink->status().ok()) << sink->status();
  for (const int k : {0, 1}) {
    EXPECT_EQ(sink->sample(k).token_ids.size(), 80);
    EXPECT_EQ(sink->sample(k).finish_reason, FinishReason::kLength);
  }
}

TEST(EngineTest, AnAnswerThatGrowsTooLargeEndsItsRequest) {
  const auto harness = EngineHarness::Fake();
  GenerateParams params = GreedyParams(RandomIds(20, 1), 100);
  params.sampling.n = 2;
  params.output.top_logprobs = 5;
  params.output.logprob_text = true;
  params.answers_at_once = true;
  const auto whole = harness->Submit(params);
  ASSERT_TRUE(whole->WaitFinished());
  int64_t bytes = 0;
  for (const int k : {0, 1}) {
    const auto& sample = whole->sample(k);
    bytes += AnswerBytes(
        {.text = sample.text, .token_ids = sample.token_ids, .logprobs = sample.logprobs}, params,
        testing::FakeTokenizer());
  }
  params.stop.stop = {"a text that never comes"};  // so that nothing is certain
  params.max_answer_bytes = bytes;
  const auto fits = harness->Submit(params);
  ASSERT_TRUE(fits->WaitFinished());
  EXPECT_TRUE(fits->status().ok()) << fits->status();
  params.max_answer_bytes = bytes - 1;
  const auto last = harness->Submit(params);
  ASSERT_TRUE(last->WaitFinished());
  EXPECT_EQ(last->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryAfter(last->status()), absl::ZeroDuration()) << "a retry would end alike";
  params.max_answer_bytes = bytes / 4;
  const int64_t steps = harness->engine().stats().steps;
  const auto early = harness->Submit(params);
  ASSERT_TRUE(early->WaitFinished());
  EXPECT_EQ(early->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(early->status().message()), HasSubstr("stream this"));
  EXPECT_LT(harness->engine().stats().steps - steps, 50) << "it ends when it is too large";
  EXPECT_GT(early->sample(0).token_ids.size(), 10);
  EXPECT_LT(early->sample(0).token_ids.size(), 40) << "and what is too much is not kept";
  harness->ExpectIdleIsEmpty();
}

TEST(EngineTest, ASecondRequestOfAKeyWaitsForTheCancelledFirst) {
  const auto harness = EngineHarness::Fake();
  StepGate gate(*harness);
  GenerateParams params = GreedyParams(RandomIds(20, 1), 5);
  params.request_id = "mine";
  const auto first = harness->Submit(params);
  ASSERT_TRUE(gate.WaitForStep());
  const auto second = harness->Submit(params);
  const auto third = harness->Submit(params);
  harness->handles[2]->Cancel();
  ASSERT_TRUE(third->WaitFinished()) << "although a step runs";
  EXPECT_EQ(third->status().code(), absl::StatusCode::kCancelled);
  harness->handles[0]->Cancel();
  EXPECT_FALSE(second->finished());
  gate.Open();
  ASSERT_TRUE(first->WaitFinished() && second->WaitFinished());
  EXPECT_EQ(first->status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(second->status().ok()) << second->status();
  EXPECT_EQ(second->sample(0).token_ids.size(), 5);
  EXPECT_EQ(harness->handles[1]->request_id(), "mine");
  harness->ExpectIdleIsEmpty();
}

TEST(EngineTest, ASecondRequestOfAKeyIsRefusedWhileTheFirstGoesOn) {
  const auto harness = EngineHarness::Fake();
  StepGate gate(*harness);
  GenerateParams params = GreedyParams(RandomIds(20, 1), 5);
  params.request_id = "mine";
  const auto first = harness->Submit(params);
  ASSERT_TRUE(gate.WaitForStep());
  const auto second = harness->Submit(params);
  GenerateParams late = params;
  late.deadline = absl::Now() + absl::Milliseconds(50);
  const auto third = harness->Submit(late);
  GenerateParams named = params;
  named.id_is_name = true;
  std::string id;
  named.on_id = [&id](const std::string& in_use) { id = in_use; };
  const auto fourth = harness->Submit(named);
  EXPECT_EQ(id, "mine~1");
  ASSERT_TRUE(second->WaitFinished() && third->WaitFinished());
  EXPECT_EQ(second->status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(third->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(harness->engine().stats().requests_rejected, 1);
  gate.Open();
  ASSERT_TRUE(first->WaitFinished() && fourth->WaitFinished());
  EXPECT_TRUE(first->status().ok() && fourth->status().ok());
  // An engine that ends leaves nobody waiting.
  StepGate again(*harness);
  const auto running = harness->Submit(params);
  ASSERT_TRUE(again.WaitForStep());
  const auto waiting = harness->Submit(params);
  again.Open();
  harness->handles.clear();
  harness->Stop();
  EXPECT_TRUE(running->WaitFinished() && waiting->WaitFinished());
}

TEST(EngineTest, AStopStringEndsTheSequenceInTheScheduler) {
  const auto harness = EngineHarness::Fake();
  const GenerateParams params = GreedyParams(RandomIds(20, 1), 30);
  const CollectingSink::Sample whole = harness->Generate(params);
  // The stop string is the text of two neighbouring ASCII tokens, so it spans a token boundary.
  const auto both_ascii = [](int32_t a, int32_t b) { return a < 128 && b < 128; };
  const auto pair = std::ranges::adjacent_find(whole.token_ids, both_ascii);
  ASSERT_NE(pair, whole.token_ids.end());
  GenerateParams stopped = params;
  stopped.stop.stop = {std::string{static_cast<char>(pair[0]), static_cast<char>(pair[1])}};
  const int64_t steps_before = harness->engine().stats().steps;
  const CollectingSink::Sample sample = harness->Generate(stopped);
  const int64_t num_tokens = pair - whole.token_ids.begin() + 2;
  EXPECT_EQ(std::ssize(sample.token_ids), num_tokens);
  EXPECT_EQ(sample.finish_reason, FinishReason::kStop);
  EXPECT_EQ(sample.stop_string, stopped.stop.stop[0]);
  EXPECT_EQ(harness->engine().stats().steps - steps_before, num_tokens) << "and no step behind it";
}

TEST(EngineTest, TokenizesAndDetokenizes) {
  const auto harness = EngineHarness::Fake();
  const std::vector<Piece> pieces =
      *harness->engine().Tokenize("ab", text::InputKind::kPart, false);
  ASSERT_EQ(pieces.size(), 2);
  EXPECT_EQ(pieces[1].id, 'b');
  EXPECT_EQ(pieces[1].begin, 1);
  EXPECT_EQ(*harness->engine().Detokenize({'a', 'b'}, true), "ab");
  EXPECT_EQ(harness->engine().Detokenize({-1}, true).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(harness->engine().ApplyChatTemplate({{"user", "hi"}}, true).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace quire::engine
