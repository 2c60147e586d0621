// Tests of SamplingParams::beam. The answers are those of a naive beam search that asks the engine
// for the best tokens after each beam, one request at a time. They are the same alone, beside other
// requests and after preemptions.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/kv/block_manager.h"
#include "kernels/ops/attention_pattern.h"
#include "tests/testing/engine_harness.h"

namespace quire::engine {
namespace {

using kernels::AttentionPattern;
using testing::CollectingSink;
using testing::EngineHarness;
using testing::ExpectSame;
using testing::GreedyParams;
using testing::HarnessOptions;
using ::testing::HasSubstr;
using testing::RandomIds;
using EarlyStopping = BeamParams::EarlyStopping;

// The layers of TinyLlama see windows, or not.
using LayerPatterns = std::vector<AttentionPattern>;

// Returns the blocks of each window for so many sequences, when half of the blocks may be pinned.
int64_t WindowBlocksFor(const LayerPatterns& layers, int32_t num_sequences, int32_t depth = 0) {
  int64_t most = 0;
  for (const AttentionPattern& pattern : layers) {
    if (pattern.sees_all()) continue;
    most = std::max(most, WindowBlocksPerSequence(
                              pattern, {.max_step_tokens = HarnessOptions().max_num_batched_tokens,
                                        .pipeline_depth = depth}));
  }
  return 2 * num_sequences * most;
}

GenerateParams BeamRequest(const TokenIds& prompt, int32_t max_tokens, const BeamParams& beam) {
  GenerateParams params;
  params.prompt = prompt;
  params.sampling.beam = beam;
  params.stop.max_tokens = max_tokens;
  params.stop.ignore_eos = true;
  params.output.token_ids = true;
  params.answers_at_once = true;
  return params;
}

struct Scored {
  TokenIds tokens;
  double score = -1e9;
};

// A literal rendering of transformers' _beam_search: fixed arrays, where -1e9 is "nothing".
class NaiveSearch {
 public:
  NaiveSearch(EngineHarness& harness, const GenerateParams& params)
      : harness_(harness),
        prompt_(std::get<TokenIds>(params.prompt)),
        beam_(*params.sampling.beam),
        ends_(params.stop.stop_token_ids),
        max_tokens_(*params.stop.max_tokens) {}

  std::vector<Scored> Run() {
    const auto width = static_cast<size_t>(beam_.width);
    const size_t num_kept = width * std::max<size_t>(2, 1 + ends_.size());
    std::vector<Scored> running(width), finished(width);
    std::vector<bool> is_finished(width, false);
    running[0].score = 0.0;
    for (int32_t length = 1;; ++length) {
      num_steps_ = length;
      std::vector<Scored> all;
      for (const Scored& beam : running) {
        if (beam.score <= -1e8) continue;
        for (const TokenLogprob& next : Best(beam.tokens)) {
          all.push_back({beam.tokens, beam.score + static_cast<double>(next.logprob)});
          all.back().tokens.push_back(next.token_id);
        }
      }
      std::ranges::stable_sort(all, std::greater<>(), &Scored::score);
      all.resize(num_kept);
      const auto ends = [&](const Scored& one) {
        return length == max_tokens_ || std::ranges::find(ends_, one.tokens.back()) != ends_.end();
      };
      std::vector<Scored> next = all;
      for (Scored& one : next) one.score += ends(one) ? -1e9 : 0.0;
      std::ranges::stable_sort(next, std::greater<>(), &Scored::score);
      running.assign(next.begin(), next.begin() + beam_.width);
      for (size_t i = 0; i < width; ++i) {
        if (!ends(all[i])) continue;
        const double score = all[i].score / std::pow(length, beam_.length_penalty);
        finished.push_back({all[i].tokens, score});
        is_finished.push_back(true);
      }
      std::vector<size_t> order(finished.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::ranges::stable_sort(order, std::greater<>(),
                               [&](size_t i) { return finished[i].score; });
      std::vector<Scored> best(width);
      std::vector<bool> best_is_finished(width);
      for (size_t i = 0; i < width; ++i) {
        best[i] = finished[order[i]];
        best_is_finished[i] = is_finished[order[i]];
      }
      finished = best;
      is_finished = best_is_finished;
      if (length == max_tokens_) return finished;
      const bool full = std::ranges::find(is_finished, false) == is_finished.end();
      const bool looks_ahead =
          beam_.early_stopping == EarlyStopping::kNever && beam_.length_penalty > 0;
      const double possible =
          running[0].score / std::pow(looks_ahead ? max_tokens_ : length, beam_.length_penalty);
      const double worst = full ? finished.back().score : -1e9;
      if (possible <= worst) return finished;
      if (full && beam_.early_stopping == EarlyStopping::kAlways) return finished;
    }
  }

  // Returns the number of steps of the search.
  int32_t num_steps() const { return num_steps_; }

 private:
  std::vector<TokenLogprob> Best(const TokenIds& tokens) {
    TokenIds whole = prompt_;
    whole.insert(whole.end(), tokens.begin(), tokens.end());
    GenerateParams params = GreedyParams(whole, 1);
    params.output.top_logprobs = 20;
    return harness_.Generate(params).logprobs.at(0).top;
  }

  EngineHarness& harness_;
  const TokenIds prompt_;
  const BeamParams beam_;
  const std::vector<int32_t> ends_;
  const int32_t max_tokens_;
  int32_t num_steps_ = 0;
};

void ExpectAnswers(const CollectingSink& sink, const std::vector<Scored>& want) {
  ASSERT_TRUE(sink.status().ok()) << sink.status();
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(i);
    const CollectingSink::Sample got = sink.sample(static_cast<int32_t>(i));
    EXPECT_EQ(got.token_ids, want[i].tokens);
    ASSERT_TRUE(got.score.has_value());
    EXPECT_NEAR(*got.score, want[i].score, 1e-12 * std::abs(want[i].score));
  }
}

// Returns likely tokens of the model, so that answers end early.
std::vector<int32_t> LikelyTokens(EngineHarness& harness, const TokenIds& prompt, size_t num) {
  GenerateParams params = GreedyParams(prompt, 4);
  params.output.top_logprobs = 8;
  std::vector<int32_t> tokens;
  for (const PositionLogprobs& position : harness.Generate(params).logprobs) {
    for (const TokenLogprob& top : position.top) {
      if (tokens.size() < num && std::ranges::find(tokens, top.token_id) == tokens.end() &&
          top.token_id % 3 == 0) {
        tokens.push_back(top.token_id);
      }
    }
  }
  return tokens;
}

class BeamModelTest : public ::testing::TestWithParam<LayerPatterns> {};
INSTANTIATE_TEST_SUITE_P(
    All, BeamModelTest,
    ::testing::Values(LayerPatterns{{}, {}}, LayerPatterns{{}, AttentionPattern::Window(17)},
                      LayerPatterns{AttentionPattern::Window(9), AttentionPattern::Chunk(16)}));

TEST_P(BeamModelTest, EqualsANaiveSearch) {
  const auto harness = EngineHarness::TinyLlama(
      {.layer_patterns = GetParam(), .window_blocks = WindowBlocksFor(GetParam(), 8)});
  int32_t num_early = 0;
  for (uint32_t i = 0; i < 96; ++i) {
    SCOPED_TRACE(i);
    const TokenIds prompt = RandomIds(5 + 7 * (i % 5), i);
    const auto width = static_cast<int32_t>(2 + i % 4);
    BeamParams beam{.width = width,
                    .length_penalty = std::vector<float>{1.0f, 0.0f, 2.5f, -1.0f, 0.5f}[i % 5],
                    .early_stopping = static_cast<EarlyStopping>(i % 3),
                    .num_return = width};
    GenerateParams params = BeamRequest(prompt, static_cast<int32_t>(1 + 7 * i % 25), beam);
    params.stop.stop_token_ids = LikelyTokens(*harness, prompt, i % 4);
    NaiveSearch search(*harness, params);
    const std::vector<Scored> want = search.Run();
    const auto sink = harness->Submit(params);
    ASSERT_TRUE(sink->WaitFinished());
    ExpectAnswers(*sink, want);
    EXPECT_EQ(sink->summary().usage.completion_tokens, width * search.num_steps());
    for (const Scored& one : want) num_early += std::ssize(one.tokens) < *params.stop.max_tokens;
  }
  EXPECT_GT(num_early, 5);
  EXPECT_GT(harness->engine().stats().beam_copies, 20);
  harness->ExpectIdleIsEmpty();
}

std::shared_ptr<CollectingSink> Search(EngineHarness& harness, const GenerateParams& params) {
  const auto sink = harness.Submit(params);
  EXPECT_TRUE(sink->WaitFinished());
  EXPECT_TRUE(sink->status().ok()) << sink->status();
  return sink;
}

void ExpectSameAnswers(const CollectingSink& got, const CollectingSink& want, int32_t num) {
  for (int32_t k = 0; k < num; ++k) {
    SCOPED_TRACE(k);
    ExpectSame(got.sample(k), want.sample(k));
    EXPECT_EQ(got.sample(k).score, want.sample(k).score);
  }
}

// At depth 1, a step begins before the beams of the step before are known.
class BeamDepthTest : public ::testing::TestWithParam<std::tuple<int32_t, LayerPatterns>> {};
INSTANTIATE_TEST_SUITE_P(
    All, BeamDepthTest,
    ::testing::Combine(::testing::Values(0, 1),
                       ::testing::Values(LayerPatterns{{}, {}},
                                         LayerPatterns{{}, AttentionPattern::Window(32)})));

TEST_P(BeamDepthTest, AnswersAreTheSameBesideOthersAndAfterPreemptions) {
  const auto& [depth, layers] = GetParam();
  int64_t num_preemptions = 0, num_recomputed = 0;
  for (uint32_t i = 0; i < 6; ++i) {
    SCOPED_TRACE(i);
    const auto width = static_cast<int32_t>(3 + i);
    const BeamParams beam{.width = width, .num_return = width};
    const GenerateParams params = BeamRequest(RandomIds(41, i), 60, beam);
    const auto roomy = EngineHarness::TinyLlama({.num_blocks = 256,
                                                 .layer_patterns = layers,
                                                 .window_blocks = WindowBlocksFor(layers, width)});
    const auto calm = Search(*roomy, params);
    EXPECT_EQ(calm->summary().usage.num_preemptions, 0);
    EXPECT_EQ(calm->summary().usage.completion_tokens, width * 60);
    EXPECT_GT(calm->summary().usage.block_copies, 0);
    EXPECT_EQ(calm->summary().usage.block_copies, roomy->engine().stats().beam_copies);

    // Room for the beams alone, in the worst case. Two greedy requests are older, one is younger.
    const auto harness =
        EngineHarness::TinyLlama({.num_blocks = 2 + width * 5,
                                  .layer_patterns = layers,
                                  .window_blocks = WindowBlocksFor(layers, width, depth),
                                  .pipeline_depth = depth});
    const auto sinks = harness->SubmitTogether({GreedyParams(RandomIds(90, 5), 100 + 10 * width),
                                                GreedyParams(RandomIds(60, 7), 60), params,
                                                GreedyParams(RandomIds(30, 6), 40)});
    for (const auto& sink : sinks) ASSERT_TRUE(sink->WaitFinished());
    ExpectSameAnswers(*sinks[2], *calm, width);
    num_preemptions += sinks[2]->summary().usage.num_preemptions;
    num_recomputed += sinks[2]->summary().usage.recomputed_tokens;
    harness->ExpectIdleIsEmpty();
  }
  EXPECT_GE(num_preemptions, 2);
  EXPECT_GT(num_recomputed, 50);
}

// The need that the engine promises to hold: blocks of the prompt once, and the rest for each beam.
TEST(BeamTest, BeamsThatJustFitTheCacheRunAlone) {
  const BeamParams beam{.width = 4, .num_return = 2};
  const GenerateParams params = BeamRequest(RandomIds(20, 1), 44, beam);
  const auto want = Search(*EngineHarness::TinyLlama(), params);
  const auto harness = EngineHarness::TinyLlama({.num_blocks = 13});
  const auto sink = Search(*harness, params);
  ExpectSameAnswers(*sink, *want, 2);
  EXPECT_EQ(sink->summary().usage.num_preemptions, 0);
  const auto small = EngineHarness::TinyLlama({.num_blocks = 12});
  const auto refused = small->Submit(params);
  ASSERT_TRUE(refused->WaitFinished());
  EXPECT_THAT(std::string(refused->status().message()), HasSubstr("20 + 44 x 4"));
}

TEST(BeamTest, FewerBlocksThanAWholeCacheOfEachBeam) {
  const BeamParams beam{.width = 8};
  const GenerateParams params = BeamRequest(RandomIds(100, 2), 60, beam);
  const auto harness = EngineHarness::TinyLlama({.num_threads = 1});
  int64_t most_held = 0;
  harness->before_forward() = [&] {
    most_held = std::max(most_held, harness->engine().stats().blocks_held);
  };
  Search(*harness, params);
  harness->Stop();
  RecordProperty("most_held", static_cast<int>(most_held));
  EXPECT_GE(most_held, 10);
  EXPECT_LE(most_held, 6 + 8 * 4);  // the prompt's whole blocks, and 60 tokens of each beam
  EXPECT_LT(most_held, 8 * 10);     // 160 tokens of each beam
}

TEST(BeamTest, NothingThatBeamsGeneratedIsFoundByOthers) {
  const auto harness = EngineHarness::TinyLlama();
  const TokenIds prompt = RandomIds(40, 3);
  const auto sink = Search(*harness, BeamRequest(prompt, 40, {.width = 3}));
  TokenIds longer = prompt;
  const TokenIds answer = sink->sample(0).token_ids;
  longer.insert(longer.end(), answer.begin(), answer.end());
  const auto after = Search(*harness, GreedyParams(longer, 1));
  EXPECT_EQ(after->summary().usage.cached_tokens, 40);
}

TEST(BeamTest, ACancelledSearchLeavesNothing) {
  const auto harness = EngineHarness::TinyLlama();
  for (int i = 0; i < 5; ++i) {
    const auto sink = harness->Submit(BeamRequest(RandomIds(40, 3), 400, {.width = 6}));
    while (harness->engine().stats().generated_tokens < 100 * i) {
    }
    harness->handles.back()->Cancel();
    ASSERT_TRUE(sink->WaitFinished());
    EXPECT_EQ(sink->status().code(), absl::StatusCode::kCancelled);
  }
  harness->ExpectIdleIsEmpty();
}

TEST(BeamTest, EndTokensWaitForMinTokensAndOtherTokensAreLeftOut) {
  const auto harness = EngineHarness::TinyLlama();
  const TokenIds prompt = RandomIds(12, 3);
  GenerateParams params = BeamRequest(prompt, 12, {.width = 3, .num_return = 3});
  params.stop.stop_token_ids = LikelyTokens(*harness, prompt, 3);
  params.stop.min_tokens = 9;
  for (int32_t id = 20; id < 120; ++id) params.sampling.allowed_token_ids.push_back(id);
  params.sampling.allowed_token_ids.push_back(params.stop.stop_token_ids[0]);
  const auto sink = Search(*harness, params);
  for (int32_t k = 0; k < 3; ++k) {
    const TokenIds ids = sink->sample(k).token_ids;
    EXPECT_GE(ids.size(), 9u);
    for (const int32_t id : ids) {
      EXPECT_NE(std::ranges::find(params.sampling.allowed_token_ids, id),
                params.sampling.allowed_token_ids.end());
    }
  }
}

TEST(BeamTest, WhatBeamsCannotHaveIsRefusedByName) {
  const auto harness = EngineHarness::TinyLlama({.max_num_seqs = 8});
  const auto error = [&](auto change) {
    GenerateParams params = BeamRequest(RandomIds(12, 3), 12, {.width = 3});
    change(params);
    const auto sink = harness->Submit(params);
    EXPECT_TRUE(sink->WaitFinished());
    EXPECT_EQ(sink->status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(sink->status().message());
  };
  EXPECT_THAT(error([](auto& p) { p.sampling.beam->width = 9; }),
              HasSubstr("sampling.beam.width: want at most max_num_seqs (8)"));
  EXPECT_THAT(error([](auto& p) { p.answers_at_once = false; }), HasSubstr("use Generate"));
  EXPECT_THAT(error([](auto& p) { p.sampling.n = 2; }), HasSubstr("beam.num_return"));
  EXPECT_THAT(error([](auto& p) {
                p.resume = {.token_ids = {{}}, .text_bytes = {0}};
                p.sampling.seed = 1;
              }),
              HasSubstr("resume_token_ids: want none with sampling.beam"));
  EXPECT_THAT(error([](auto& p) {
                for (int32_t id = 0; id < 33; ++id) p.stop.stop_token_ids.push_back(id);
              }),
              HasSubstr("stop.stop_token_ids: want at most 32"));
  EXPECT_THAT(error([](auto& p) {
                p.sampling.allowed_token_ids = {1, 2};
              }),
              HasSubstr("sampling.beam.width: want at most the 2 continuations"));
}

TEST(BeamTest, WindowsHaveRoomForAsManyBeamsAsAreAdmitted) {
  const LayerPatterns layers = {{}, AttentionPattern::Window(32)};
  const auto harness = EngineHarness::TinyLlama(
      {.layer_patterns = layers, .window_blocks = WindowBlocksFor(layers, 3)});
  Search(*harness, BeamRequest(RandomIds(90, 3), 60, {.width = 3}));
  const auto refused = harness->Submit(BeamRequest(RandomIds(12, 3), 12, {.width = 4}));
  ASSERT_TRUE(refused->WaitFinished());
  EXPECT_EQ(refused->status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused->status().message()),
              HasSubstr("sampling.beam.width: want at most 3, for which the KV cache has room"));
  harness->ExpectIdleIsEmpty();
}

}  // namespace
}  // namespace quire::engine
