// Tests that drafted tokens change no answer: tokens, texts, log-probabilities and ends of requests
// are those of an engine that drafts nothing. Each test checks by counters that drafts were
// accepted and refused.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "tests/testing/engine_harness.h"
#include "tests/testing/fake_clock.h"

namespace quire::engine {
namespace {

using testing::CollectingSink;
using testing::EngineHarness;
using testing::ExpectSame;
using testing::GreedyParams;
using testing::HarnessOptions;
using testing::MakeHarness;
using testing::RandomIds;

// Draws from only three ids, so that any run of three tokens soon repeats.
GenerateParams FewIds(uint32_t seed, int32_t max_tokens) {
  GenerateParams params = GreedyParams(RandomIds(20 + seed % 30, seed), max_tokens);
  params.sampling.allowed_token_ids = {65, 66, 97};
  params.sampling.temperature = 1.0f;
  params.sampling.seed = seed;
  return params;
}

// By a clock that stands still, drafts cost nothing, so that many are made.
class DraftsTest : public ::testing::TestWithParam<MakeHarness> {
 protected:
  std::unique_ptr<EngineHarness> Make(HarnessOptions options = {}) {
    options.max_draft_tokens = 5;
    options.clock = &clock_;
    return GetParam()(options);
  }
  // Runs all requests together on an engine with drafts. Expects the samples that each request
  // gives alone on one without drafts. Returns the counts of the engine with drafts.
  Stats ExpectAllSame(const std::vector<GenerateParams>& all, const HarnessOptions& options = {}) {
    const auto harness = Make(options);
    const auto sinks = harness->SubmitTogether(all);
    for (size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_TRUE(sinks[i]->WaitFinished());
      const auto plain = GetParam()({});
      const auto want = plain->Submit(all[i]);
      EXPECT_TRUE(want->WaitFinished());
      for (int32_t k = 0; k < all[i].sampling.n; ++k) {
        ExpectSame(sinks[i]->sample(k), want->sample(k));
      }
      EXPECT_EQ(sinks[i]->summary().usage.completion_tokens,
                want->summary().usage.completion_tokens);
      EXPECT_EQ(plain->engine().stats().drafted_tokens, 0);
    }
    const Stats stats = harness->engine().stats();
    EXPECT_GT(stats.accepted_tokens, 0);
    EXPECT_GT(stats.drafted_tokens, stats.accepted_tokens);
    harness->ExpectIdleIsEmpty();
    return stats;
  }

 private:
  testing::FakeClock clock_;
};

TEST_P(DraftsTest, ALoneRequestTakesFewerSteps) {
  const Stats stats = ExpectAllSame({FewIds(1, 200)});
  EXPECT_EQ(stats.generated_tokens, 200);
  // One step computes the prompt. Each later step draws one token besides its accepted drafts.
  EXPECT_EQ(stats.steps, 200 - stats.accepted_tokens);
}

TEST_P(DraftsTest, AmongOthers) {
  std::vector<GenerateParams> all;
  for (uint32_t i = 0; i < 12; ++i) all.push_back(FewIds(i, 40 + static_cast<int32_t>(i)));
  ExpectAllSame(all);
}

// The penalties of a row must count the drafted tokens before the row, and no others.
TEST_P(DraftsTest, WithPenaltiesAndEveryOtherStage) {
  std::vector<GenerateParams> all;
  for (uint32_t i = 0; i < 6; ++i) {
    GenerateParams params = FewIds(i, 80);
    params.sampling.repetition_penalty = 1.3f;
    params.sampling.frequency_penalty = 0.2f;
    params.sampling.presence_penalty = 0.3f;
    params.sampling.penalty_last_n = i % 2 == 0 ? -1 : 7;
    params.sampling.top_k = 3;
    params.sampling.min_p = 0.01f;
    params.sampling.logit_bias = {{.token_id = 66, .bias = 0.5f}};
    all.push_back(params);
  }
  ExpectAllSame(all);
}

// A stop may come at any drafted token. What was drafted after it is neither sent nor counted.
TEST_P(DraftsTest, WithStops) {
  std::vector<GenerateParams> all;
  for (uint32_t i = 0; i < 24; ++i) {
    GenerateParams params = FewIds(i, 150);
    // The prompt has most of the 27 runs of three allowed ids, so the tokens that stop the request
    // are often drafts.
    TokenIds& prompt = std::get<TokenIds>(params.prompt);
    for (const int32_t id : RandomIds(60, i)) {
      prompt.push_back(params.sampling.allowed_token_ids[static_cast<size_t>(id) % 3]);
    }
    if (i % 2 == 0) params.stop.stop_token_ids = {97};
    if (i % 2 == 1) params.stop.stop = {"ABA", "BBBB"};
    params.stop.min_tokens = 20 + static_cast<int32_t>(i);
    params.stop.include_stop = i % 4 < 2;
    all.push_back(params);
  }
  ExpectAllSame(all);
}

TEST_P(DraftsTest, EndAtTheirLastToken) {
  std::vector<GenerateParams> all;
  for (int32_t max_tokens = 61; max_tokens <= 84; ++max_tokens) {
    all.push_back(FewIds(7, max_tokens));
  }
  ExpectAllSame(all);
}

TEST_P(DraftsTest, OfForkedSamples) {
  GenerateParams params = FewIds(3, 90);
  params.sampling.n = 4;
  EXPECT_GT(ExpectAllSame({params}).block_copies, 0);
}

TEST_P(DraftsTest, AfterPreemption) {
  std::vector<GenerateParams> all;
  for (uint32_t i = 0; i < 8; ++i) all.push_back(FewIds(i, 120));
  EXPECT_GT(ExpectAllSame(all, {.num_blocks = 18}).preemptions, 0);
}

TEST_P(DraftsTest, WithRoomForFewTokensInAStep) {
  std::vector<GenerateParams> all;
  for (uint32_t i = 0; i < 4; ++i) all.push_back(FewIds(i, 60));
  ExpectAllSame(all, {.max_num_seqs = 4, .max_num_batched_tokens = 6});
}

// Tokens that another request finds in the cache were accepted or drawn, never refused.
TEST_P(DraftsTest, LeaveNoRefusedTokenInTheCache) {
  const auto harness = Make();
  const GenerateParams first = FewIds(5, 100);
  const CollectingSink::Sample answer = harness->Generate(first);
  TokenIds prompt = std::get<TokenIds>(first.prompt);
  const int64_t num_computed = std::ssize(prompt) + 99;  // the last token was never computed
  prompt.insert(prompt.end(), answer.token_ids.begin(), answer.token_ids.end());
  prompt.push_back(70);
  GenerateParams next = FewIds(6, 30);
  next.prompt = prompt;
  const auto sink = harness->Submit(next);
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->summary().usage.cached_tokens, num_computed);
  ExpectSame(sink->sample(), GetParam()({})->Generate(next));
  EXPECT_GT(harness->engine().stats().accepted_tokens, 0);
}

// If a reader has no room for the drafts, it gets one delta at a time.
TEST_P(DraftsTest, StayWithinTheRoomOfASink) {
  const GenerateParams params = FewIds(2, 60);
  const auto harness = Make();
  const auto sink = harness->Submit(params, 10);
  ASSERT_TRUE(sink->WaitDeltas(10));
  sink->SetRoom(-1);
  ASSERT_TRUE(sink->WaitFinished());
  ExpectSame(sink->sample(), GetParam()({})->Generate(params));
}

std::unique_ptr<EngineHarness> WindowedTinyLlama(const HarnessOptions& given) {
  HarnessOptions options = given;
  options.layer_patterns = {kernels::AttentionPattern::Window(24), {}};
  options.window_blocks = 512;
  return EngineHarness::TinyLlama(options);
}

INSTANTIATE_TEST_SUITE_P(Models, DraftsTest,
                         ::testing::Values(&EngineHarness::Fake, &EngineHarness::TinyLlama,
                                           &WindowedTinyLlama));

// The cache of an endless stream shifts. A draft must end before a shift.
TEST(DraftsOfStreamsTest, EndBeforeAShift) {
  GenerateParams params = FewIds(1, 700);
  params.cache.sink_tokens = 4;
  params.cache.window_tokens = 70;
  const testing::FakeClock clock;
  const auto harness = EngineHarness::TinyLlama({.max_draft_tokens = 5, .clock = &clock});
  const auto sink = harness->Submit(params);
  ASSERT_TRUE(sink->WaitFinished());
  ExpectSame(sink->sample(), EngineHarness::TinyLlama()->Generate(params));
  EXPECT_GT(harness->engine().stats().accepted_tokens, 0);
}

// Runs `num_streams` requests at once on a machine whose steps take `step`, and `row` for each of
// their tokens. Returns the time.
absl::Duration TimeOf(uint32_t num_streams, absl::Duration step, absl::Duration row,
                      const std::vector<int32_t>& ids, int32_t max_draft_tokens,
                      Stats* stats = nullptr) {
  testing::FakeClock clock;
  const auto harness = EngineHarness::Fake({.num_blocks = 1024,
                                            .max_num_seqs = 32,
                                            .max_draft_tokens = max_draft_tokens,
                                            .clock = &clock,
                                            .on_forward = [&](const ModelInput& input) {
                                              clock.Advance(step + input.num_tokens() * row);
                                            }});
  const absl::Time begin = clock.Now();
  std::vector<GenerateParams> all;
  for (uint32_t i = 0; i < num_streams; ++i) {
    all.push_back(FewIds(i, 200));
    all.back().sampling.allowed_token_ids = ids;
  }
  for (const auto& sink : harness->SubmitTogether(all)) EXPECT_TRUE(sink->WaitFinished());
  if (stats != nullptr) *stats = harness->engine().stats();
  return clock.Now() - begin;
}

// Whatever a row costs, whether guesses are right often or seldom, and however many streams there
// are: drafts cost nothing.
TEST(DraftsPayTest, OnAnyMachine) {
  constexpr absl::Duration kStep = absl::Milliseconds(3);
  for (const int64_t row_us : {100, 1000}) {
    for (const uint32_t num_streams : {1, 8, 32}) {
      for (const std::vector<int32_t>& ids :
           {std::vector<int32_t>{65}, {65, 66}, {65, 66, 97}, {65, 66, 67, 68, 69}}) {
        SCOPED_TRACE(absl::StrCat(row_us, " us, ", num_streams, " streams, ", ids.size(), " ids"));
        const absl::Duration row = absl::Microseconds(row_us);
        Stats stats;
        const absl::Duration with = TimeOf(num_streams, kStep, row, ids, 4, &stats);
        const absl::Duration without = TimeOf(num_streams, kStep, row, ids, 0);
        EXPECT_LE(with, 1.01 * without);
        EXPECT_LE(stats.drafts_price, stats.drafts_expected);
        if (ids.size() == 1 && row_us <= 100) {
          EXPECT_LT(with, 0.9 * without);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::engine
