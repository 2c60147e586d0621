// Tests that a stream that breaks at any message and is resumed gives the answer of an undisturbed
// one: text to the byte, tokens, ends, and the log-probabilities of the tokens that are left.

#include <algorithm>
#include <cstring>

#include "gtest/gtest.h"

#include "engine/output/replay.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/step_gate.h"

namespace quire::engine {
namespace {

using testing::CollectingSink;
using testing::EngineHarness;
using testing::GreedyParams;
using testing::HarnessOptions;
using testing::MakeHarness;
using testing::RandomIds;

// Records every delta of a stream.
class RecordingSink final : public TokenSink {
 public:
  bool CanTake(int32_t) const override { return true; }
  void Put(TokenDelta delta) override {
    base::MutexLock lock(mu_);
    deltas_.push_back(std::move(delta));
  }
  void Finish(const absl::Status& status, const RequestSummary& summary) override {
    base::MutexLock lock(mu_);
    status_ = status;
    summary_ = summary;
    finished_ = true;
    changed_.NotifyAll();
  }

  // Waits for the end of the stream, which must not fail.
  const std::vector<TokenDelta>& Wait() {
    base::MutexLock lock(mu_);
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!finished_ && std::chrono::steady_clock::now() < give_up) {
      changed_.WaitFor(mu_, std::chrono::milliseconds(100));
    }
    EXPECT_TRUE(finished_);
    EXPECT_EQ(status_, absl::OkStatus());
    return deltas_;
  }
  Usage usage() const {
    base::MutexLock lock(mu_);
    return summary_.usage;
  }

 private:
  mutable base::Mutex mu_;
  base::CondVar changed_;
  std::vector<TokenDelta> deltas_;
  RequestSummary summary_;
  absl::Status status_;
  bool finished_ = false;
};

struct Sample {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<PositionLogprobs> logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  std::string stop_string;
  std::optional<int32_t> stop_token_id;
};

// Adds up the deltas [0, num_deltas) of a stream of n samples.
std::vector<Sample> AddUp(const std::vector<TokenDelta>& deltas, size_t num_deltas, int32_t n) {
  std::vector<Sample> samples(static_cast<size_t>(n));
  for (size_t i = 0; i < num_deltas; ++i) {
    const TokenDelta& delta = deltas[i];
    Sample& sample = samples[static_cast<size_t>(delta.index)];
    sample.text += delta.text;
    sample.ids.insert(sample.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    sample.logprobs.insert(sample.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    sample.finish_reason = std::max(sample.finish_reason, delta.finish_reason);
    sample.stop_string += delta.stop_string;
    if (delta.stop_token_id) sample.stop_token_id = delta.stop_token_id;
  }
  return samples;
}

GenerateParams Resumed(GenerateParams params, const std::vector<Sample>& arrived) {
  ResumeParams& resume = params.resume.emplace();
  resume.model_digest = "digest";
  resume.numerics = "numerics";
  for (const Sample& sample : arrived) {
    resume.token_ids.push_back(sample.ids);
    resume.text_bytes.push_back(sample.text.size());
  }
  return params;
}

int64_t NumTokens(const std::vector<Sample>& samples) {
  int64_t num = 0;
  for (const Sample& sample : samples) num += std::ssize(sample.ids);
  return num;
}

void ExpectSameLogprobs(const std::vector<PositionLogprobs>& got,
                        std::span<const PositionLogprobs> want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(std::memcmp(&got[i].chosen, &want[i].chosen, sizeof(TokenLogprob)), 0) << i;
    EXPECT_EQ(got[i].rank, want[i].rank) << i;
    EXPECT_GT(got[i].rank, 0) << i;
    ASSERT_EQ(got[i].top.size(), want[i].top.size());
    EXPECT_EQ(std::memcmp(got[i].top.data(), want[i].top.data(),
                          got[i].top.size() * sizeof(TokenLogprob)),
              0)
        << i;
  }
}

// Expects that `arrived` and `rest` make up `whole`.
void ExpectWhole(const std::vector<Sample>& arrived, const std::vector<Sample>& rest,
                 const std::vector<Sample>& whole) {
  for (size_t k = 0; k < whole.size(); ++k) {
    SCOPED_TRACE(k);
    EXPECT_EQ(arrived[k].text + rest[k].text, whole[k].text);
    std::vector<int32_t> ids = arrived[k].ids;
    ids.insert(ids.end(), rest[k].ids.begin(), rest[k].ids.end());
    EXPECT_EQ(ids, whole[k].ids);
    EXPECT_EQ(rest[k].finish_reason, whole[k].finish_reason);
    EXPECT_EQ(rest[k].stop_string, whole[k].stop_string);
    EXPECT_EQ(rest[k].stop_token_id, whole[k].stop_token_id);
    ExpectSameLogprobs(rest[k].logprobs,
                       std::span(whole[k].logprobs).subspan(arrived[k].logprobs.size()));
  }
}

// The first bytes of é, € and an emoji, their other bytes, and letters for stop strings. So
// characters are often unfinished or malformed, and stop strings often begin.
GenerateParams Params(uint32_t seed, int32_t max_tokens) {
  GenerateParams params = GreedyParams(RandomIds(21 + seed % 7, seed), max_tokens);
  params.sampling.temperature = 1.0f;
  params.sampling.seed = 1000 + seed;
  params.sampling.allowed_token_ids = {'A',  'B',  'C',  0xC3, 0xA9, 0xE2,
                                       0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80};
  params.output.resumable = true;
  return params;
}

class ResumeTest : public ::testing::TestWithParam<MakeHarness> {
 protected:
  std::unique_ptr<EngineHarness> Make(HarnessOptions options = {}) { return GetParam()(options); }
  static std::shared_ptr<RecordingSink> Submit(EngineHarness& harness,
                                               const GenerateParams& params) {
    auto sink = std::make_shared<RecordingSink>();
    auto submitted = harness.engine().Submit(params, sink);
    EXPECT_TRUE(submitted.ok()) << submitted.status();
    return sink;
  }

  // Cuts the stream of `params` after each of its messages, and resumes it on an engine that never
  // ran it. Returns the whole answer.
  std::vector<Sample> ExpectExactAfterEveryCut(const GenerateParams& params,
                                               const HarnessOptions& options = {}) {
    const int32_t n = params.sampling.n;
    const auto undisturbed = Make();
    const auto sink = Submit(*undisturbed, params);
    const std::vector<TokenDelta> deltas = sink->Wait();
    const std::vector<Sample> whole = AddUp(deltas, deltas.size(), n);
    const auto harness = Make(options);
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (size_t cut = 0; cut <= deltas.size(); ++cut) {
      sinks.push_back(Submit(*harness, Resumed(params, AddUp(deltas, cut, n))));
    }
    for (size_t cut = 0; cut <= deltas.size(); ++cut) {
      SCOPED_TRACE(cut);
      const std::vector<Sample> arrived = AddUp(deltas, cut, n);
      const std::vector<TokenDelta>& rest = sinks[cut]->Wait();
      ExpectWhole(arrived, AddUp(rest, rest.size(), n), whole);
      const Usage usage = sinks[cut]->usage();
      EXPECT_EQ(usage.resumed_tokens, NumTokens(arrived));
      EXPECT_EQ(usage.completion_tokens, NumTokens(whole));
      EXPECT_EQ(usage.prompt_tokens, sink->usage().prompt_tokens);
      EXPECT_LE(usage.cached_tokens, usage.prompt_tokens);
    }
    harness->ExpectIdleIsEmpty();
    const Stats stats = harness->engine().stats();
    EXPECT_EQ(stats.resumes[0], std::ssize(sinks));
    EXPECT_EQ(stats.requests_rejected, 0);
    last_stats_ = stats;
    return whole;
  }

  Stats last_stats_;
};

TEST_P(ResumeTest, Greedy) {
  GenerateParams params = Params(1, 40);
  params.sampling.temperature = 0.0f;
  params.sampling.repetition_penalty = 1.2f;
  ExpectExactAfterEveryCut(params);
}

TEST_P(ResumeTest, Sampled) {
  for (uint32_t seed = 2; seed < 5; ++seed) ExpectExactAfterEveryCut(Params(seed, 40));
}

TEST_P(ResumeTest, WithPenalties) {
  GenerateParams params = Params(5, 48);
  params.sampling.presence_penalty = 0.4f;
  params.sampling.frequency_penalty = 0.3f;
  params.sampling.repetition_penalty = 1.3f;
  params.sampling.logit_bias = {{.token_id = 'B', .bias = 0.5f}};
  for (const int32_t last_n : {-1, 5}) {
    params.sampling.penalty_last_n = last_n;
    ExpectExactAfterEveryCut(params);
  }
}

TEST_P(ResumeTest, ThreeSamplesThatEndAtDifferentTimes) {
  GenerateParams params = Params(6, 40);
  params.sampling.n = 3;
  params.stop.stop_token_ids = {'C'};
  params.stop.min_tokens = 4;
  const std::vector<Sample> whole = ExpectExactAfterEveryCut(params);
  EXPECT_NE(whole[0].ids.size(), whole[1].ids.size());
}

TEST_P(ResumeTest, AtStopStringsThatAreHeldBack) {
  for (const bool include_stop : {false, true}) {
    for (uint32_t seed = 7; seed < 13; ++seed) {
      GenerateParams params = Params(seed, 160);
      params.sampling.allowed_token_ids = {'A', 'B', 0xC3};
      params.stop.stop = {"ABABA", "BBB", "AAA"};
      params.stop.include_stop = include_stop;
      params.stop.min_tokens = static_cast<int32_t>(seed);
      const std::vector<Sample> whole = ExpectExactAfterEveryCut(params);
      EXPECT_EQ(whole[0].finish_reason, FinishReason::kStop);
    }
  }
}

TEST_P(ResumeTest, AtStopStringsOfHiddenSpecialTokens) {
  constexpr int32_t kBos = 256;  // "<s>"
  for (const bool include_stop : {false, true}) {
    for (uint32_t seed = 20; seed < 24; ++seed) {
      GenerateParams params = Params(seed, 160);
      params.sampling.n = 2;
      params.sampling.allowed_token_ids = {'A', 'B', 0xC3, kBos};
      params.sampling.temperature = 8.0f;
      params.stop.stop = {"<s>B<s>", "A<s>", "BB<s>"};
      params.stop.include_stop = include_stop;
      params.stop.min_tokens = 6;
      const std::vector<Sample> whole =
          ExpectExactAfterEveryCut(params, {.max_draft_tokens = seed % 2 == 0 ? 4 : 0});
      for (const Sample& sample : whole) {
        EXPECT_EQ(sample.finish_reason, FinishReason::kStop);
        EXPECT_TRUE(sample.stop_string.ends_with("<s>")) << sample.stop_string;
        EXPECT_EQ(sample.ids.back(), kBos);
        EXPECT_EQ(sample.text.find("<s>") != std::string::npos, include_stop);
      }
    }
  }
}

TEST_P(ResumeTest, WithEchoOfAPromptThatEndsInsideACharacter) {
  GenerateParams params = Params(14, 20);
  params.prompt = TokenIds{'x', 'y', 0xE2, 0x82};
  params.output.echo = true;
  ExpectExactAfterEveryCut(params);
}

TEST_P(ResumeTest, WithoutText) {
  GenerateParams params = Params(15, 30);
  params.output.text = false;
  params.stop.stop = {"AB"};
  ExpectExactAfterEveryCut(params);
}

TEST_P(ResumeTest, WithLogprobsOfThePrompt) {
  GenerateParams params = Params(16, 12);
  params.output.prompt_logprobs = 2;
  params.sampling.n = 2;
  ExpectExactAfterEveryCut(params);
}

TEST_P(ResumeTest, WithoutTheCache) {
  GenerateParams params = Params(17, 30);
  params.cache.bypass_read = true;
  params.cache.bypass_write = true;
  params.sampling.n = 2;
  ExpectExactAfterEveryCut(params);
  EXPECT_EQ(last_stats_.prompt_tokens_cached, 0);
}

TEST_P(ResumeTest, AfterPreemptions) {
  GenerateParams params = Params(18, 110);
  // Otherwise all of them share the blocks of equal tokens.
  params.cache.bypass_read = true;
  params.cache.bypass_write = true;
  ExpectExactAfterEveryCut(params, {.num_blocks = 18});
  EXPECT_GT(last_stats_.preemptions, 0);
}

TEST_P(ResumeTest, WithDrafts) {
  GenerateParams params = Params(19, 60);
  params.sampling.allowed_token_ids = {'A', 0xC3};
  // With many sequences in a step nothing is drafted. By a clock that stands still, drafts cost
  // nothing.
  const testing::FakeClock clock;
  ExpectExactAfterEveryCut(params, {.max_num_seqs = 1, .max_draft_tokens = 4, .clock = &clock});
  EXPECT_GT(last_stats_.accepted_tokens, 0);
}

TEST_P(ResumeTest, BetweenTheShiftsOfACacheWindow) {
  GenerateParams params = Params(20, 150);
  params.cache.window_tokens = 48;
  params.cache.sink_tokens = 16;
  ExpectExactAfterEveryCut(params);
}

// The samples of a request that is resumed share the prompt in the usage, as forked ones do.
TEST_P(ResumeTest, ThePromptCountsOnce) {
  GenerateParams params = Params(21, 30);
  params.sampling.n = 3;
  const auto undisturbed = Make();
  const std::vector<TokenDelta> deltas = Submit(*undisturbed, params)->Wait();
  const auto harness = Make();
  const auto sink = Submit(*harness, Resumed(params, AddUp(deltas, deltas.size() / 2, 3)));
  sink->Wait();
  const Stats stats = harness->engine().stats();
  EXPECT_EQ(stats.prompt_tokens_computed + stats.prompt_tokens_cached, sink->usage().prompt_tokens);
}

TEST_P(ResumeTest, AStreamThatCanBeResumedBeginsWithItsSeed) {
  GenerateParams params = Params(22, 3);
  const auto harness = Make();
  const std::vector<TokenDelta> deltas = Submit(*harness, params)->Wait();
  ASSERT_EQ(deltas.size(), 4);
  EXPECT_EQ(deltas[0].seed, 1022);
  EXPECT_TRUE(deltas[0].token_ids.empty());
  params.output.resumable = false;
  EXPECT_EQ(Submit(*harness, params)->Wait().size(), 3);
}

TEST_P(ResumeTest, CancelledWhileItWaits) {
  const auto harness = Make({.max_num_seqs = 1});
  GenerateParams params = Params(23, 40);
  const std::vector<TokenDelta> deltas = Submit(*Make(), params)->Wait();
  testing::StepGate gate(*harness);
  const auto running = harness->Submit(GreedyParams(RandomIds(20, 5), 40));
  ASSERT_TRUE(gate.WaitForStep());
  const auto resumed = harness->Submit(Resumed(params, AddUp(deltas, 20, 1)));
  harness->WaitForFrontend();
  harness->handles.back()->Cancel();
  gate.Open();
  ASSERT_TRUE(resumed->WaitFinished());
  EXPECT_EQ(resumed->status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(resumed->sample().finish_reason, FinishReason::kAbort);
  ASSERT_TRUE(running->WaitFinished());
  harness->ExpectIdleIsEmpty();
}

class ResumeRefusalTest : public ::testing::Test {
 protected:
  void ExpectRefused(const GenerateParams& params, absl::StatusCode code,
                     const std::string& message) {
    const auto sink = harness_->Submit(params);
    ASSERT_TRUE(sink->WaitFinished());
    EXPECT_EQ(sink->status().code(), code) << sink->status();
    EXPECT_NE(std::string(sink->status().message()).find(message), std::string::npos)
        << sink->status();
  }
  void ExpectInvalid(const GenerateParams& params, const std::string& message) {
    ExpectRefused(params, absl::StatusCode::kInvalidArgument, message);
  }
  static GenerateParams TwoSamples() {
    GenerateParams params = Params(30, 20);
    params.sampling.n = 2;
    return Resumed(params, {{.text = "AB", .ids = {'A', 'B'}}, {.text = "é", .ids = {0xC3, 0xA9}}});
  }

  std::unique_ptr<EngineHarness> harness_ = EngineHarness::Fake();
};

TEST_F(ResumeRefusalTest, WhatFitsIsAdmitted) {
  const auto sink = harness_->Submit(TwoSamples());
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status(), absl::OkStatus());
  EXPECT_EQ(harness_->engine().stats().resumes, (std::array<int64_t, 3>{1, 0, 0}));
}

TEST_F(ResumeRefusalTest, WrongCounts) {
  GenerateParams params = TwoSamples();
  params.resume->token_ids.pop_back();
  ExpectInvalid(params, "resume_token_ids: want one entry for each of the 2 samples, got 1");
  params = TwoSamples();
  params.resume->text_bytes.push_back(0);
  ExpectInvalid(params, "resume_text_bytes: want one entry for each of the 2 samples, got 3");
  EXPECT_EQ(harness_->engine().stats().resumes, (std::array<int64_t, 3>{0, 2, 0}));
}

TEST_F(ResumeRefusalTest, WithoutSeedDigestOrNumerics) {
  GenerateParams params = TwoSamples();
  params.sampling.seed.reset();
  ExpectInvalid(params, "sampling.seed");
  params = TwoSamples();
  params.resume->model_digest.clear();
  ExpectInvalid(params, "resume_model_digest");
  params = TwoSamples();
  params.resume->numerics.clear();
  ExpectInvalid(params, "resume_numerics");
}

TEST_F(ResumeRefusalTest, AnotherModelOrAnotherArithmetic) {
  GenerateParams params = TwoSamples();
  params.resume->model_digest = "other";
  ExpectRefused(params, absl::StatusCode::kFailedPrecondition,
                "resume_model_digest: the stream ran with \"other\", this server has \"digest\"");
  params = TwoSamples();
  params.resume->numerics = "cpu-0";
  ExpectRefused(params, absl::StatusCode::kFailedPrecondition,
                "resume_numerics: the stream ran with \"cpu-0\", this server has \"numerics\"");
  EXPECT_EQ(harness_->engine().stats().resumes, (std::array<int64_t, 3>{0, 0, 2}));
}

TEST_F(ResumeRefusalTest, ATokenOutsideTheVocabulary) {
  GenerateParams params = TwoSamples();
  for (const int32_t id : {-1, 258}) {
    params.resume->token_ids[1][1] = id;
    ExpectInvalid(params, "resume_token_ids[1]: want 0..257");
  }
  for (const int32_t id : {0, 257}) {  // it is refused only because no answer has this token
    params.resume->token_ids[1][1] = id;
    const auto sink = harness_->Submit(params);
    ASSERT_TRUE(sink->WaitFinished());
    EXPECT_EQ(std::string(sink->status().message()).find("want 0..257"), std::string::npos) << id;
  }
}

TEST_F(ResumeRefusalTest, MoreTextThanTheTokensRelease) {
  GenerateParams params = TwoSamples();
  params.resume->text_bytes[0] = 3;
  ExpectInvalid(params, "resume_text_bytes[0]: want at most 2");
  params = TwoSamples();
  params.resume->text_bytes[1] = 1;
  ExpectInvalid(params, "resume_text_bytes[1]: want whole characters");
  params = TwoSamples();
  params.resume->token_ids = {{}, {}};
  params.resume->text_bytes = {0, 1};
  ExpectInvalid(params, "resume_text_bytes[1]: want at most 0");
}

TEST_P(ResumeTest, TheFirstMessageSaysWhatWasResolvedAndThatIsServed) {
  GenerateParams params = Params(3, 1000);  // a bound beyond the context
  params.sampling.n = 2;
  params.sampling.seed.reset();
  const auto harness = Make({.max_model_len = 64});
  const auto prompt_len = static_cast<int32_t>(std::get<TokenIds>(params.prompt).size());
  for (const bool resumable : {true, false}) {
    params.output.resumable = resumable;
    const std::vector<TokenDelta> deltas = Submit(*harness, params)->Wait();
    ASSERT_NE(deltas[0].resolved, nullptr);
    const ResolvedParams& resolved = *deltas[0].resolved;
    EXPECT_EQ(resolved.max_tokens, 64 - prompt_len);
    EXPECT_EQ(resolved.sampling.seed, deltas[0].seed - static_cast<uint64_t>(deltas[0].index));
    EXPECT_EQ(resolved.sampling.n, 2);
    EXPECT_TRUE(resolved.sampling.allowed_token_ids.empty()) << "the request has them";
    for (size_t i = 1; i < deltas.size(); ++i) EXPECT_EQ(deltas[i].resolved, nullptr) << i;
    const std::vector<Sample> whole = AddUp(deltas, deltas.size(), 2);
    EXPECT_EQ(NumTokens(whole), 2 * resolved.max_tokens);
    // A server with another context ends where this one did.
    const std::vector<Sample> arrived = AddUp(deltas, deltas.size() / 2, 2);
    GenerateParams resumed = Resumed(params, arrived);
    resumed.sampling.seed = resolved.sampling.seed;
    resumed.stop.max_tokens = resolved.max_tokens;
    resumed.resume->max_tokens_is_resolved = true;
    const std::vector<TokenDelta> rest = Submit(*Make({.max_model_len = 256}), resumed)->Wait();
    ExpectWhole(arrived, AddUp(rest, rest.size(), 2), whole);
    EXPECT_EQ(rest.at(0).resolved->max_tokens, resolved.max_tokens);
  }
}

TEST_F(ResumeRefusalTest, TokensAfterTheEnd) {
  GenerateParams params = TwoSamples();
  params.stop.stop = {"A"};
  params.resume->text_bytes[0] = 0;
  ExpectInvalid(params, "resume_token_ids[0]: want no token after the one that ends the sample");
  params = TwoSamples();
  params.stop.max_tokens = 1;
  ExpectInvalid(params, "resume_token_ids[0]: want no token after the one that ends the sample");
  // Exactly at the end.
  params.resume->token_ids = {{'A'}, {0xC3}};
  params.resume->text_bytes = {1, 0};
  const auto sink = harness_->Submit(params);
  ASSERT_TRUE(sink->WaitFinished());
  EXPECT_EQ(sink->status(), absl::OkStatus());
  EXPECT_EQ(sink->sample(0).text, "");
  EXPECT_EQ(sink->sample(0).finish_reason, FinishReason::kLength);
  EXPECT_EQ(sink->sample(1).text, "\xEF\xBF\xBD");
}

TEST_F(ResumeRefusalTest, AScoringRequest) {
  GenerateParams params = TwoSamples();
  params.continuations = {TokenIds{65}, TokenIds{66}};
  ExpectInvalid(params, "resume_token_ids: want none where continuations are scored");
}

INSTANTIATE_TEST_SUITE_P(Models, ResumeTest,
                         ::testing::Values(&EngineHarness::Fake, &EngineHarness::TinyLlama),
                         [](const auto& info) { return info.index == 0 ? "Fake" : "TinyLlama"; });

}  // namespace
}  // namespace quire::engine
