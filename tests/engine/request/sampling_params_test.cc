#include "engine/request/sampling_params.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::engine {
namespace {

using ::testing::StartsWith;

constexpr int32_t kVocabSize = 100;

struct Params {
  SamplingParams sampling;
  StopParams stop;
  OutputOptions output;
  CacheParams cache;
  SchedParams sched;
};

absl::Status Check(const Params& p) {
  return Validate(p.sampling, p.stop, p.output, p.cache, p.sched, kVocabSize);
}

struct Case {
  std::string field;  // the start of the error message; empty: `set` makes valid parameters
  std::function<void(Params&)> set;
};

class ValidateTest : public ::testing::TestWithParam<Case> {};

TEST_P(ValidateTest, SaysWhichFieldIsWrong) {
  Params params;
  GetParam().set(params);
  const absl::Status status = Check(params);
  if (GetParam().field.empty()) {
    EXPECT_TRUE(status.ok()) << status;
    return;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith(GetParam().field + ": want "));
}

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInfinity = std::numeric_limits<float>::infinity();

Params Searching() {
  Params params;
  params.sampling.beam = {.width = 4};
  return params;
}

// The cases test both sides of every limit.
INSTANTIATE_TEST_SUITE_P(
    Fields, ValidateTest,
    ::testing::Values(
        Case{"", [](Params&) {}},  //
        Case{"", [](Params& p) { p.cache = {.sink_tokens = 4, .window_tokens = 1}; }},
        Case{"cache.sink_tokens", [](Params& p) { p.cache.sink_tokens = 4; }},
        Case{"cache.sink_tokens",
             [](Params& p) { p.cache = {.sink_tokens = -1, .window_tokens = 1}; }},
        Case{"cache.window_tokens", [](Params& p) { p.cache.window_tokens = -1; }},
        Case{"", [](Params& p) { p.sampling.temperature = 0.0f; }},
        Case{"", [](Params& p) { p.sampling.temperature = 100.0f; }},
        Case{"sampling.temperature", [](Params& p) { p.sampling.temperature = -0.1f; }},
        Case{"sampling.temperature", [](Params& p) { p.sampling.temperature = 100.1f; }},
        Case{"sampling.temperature", [](Params& p) { p.sampling.temperature = kNan; }},
        Case{"sampling.temperature", [](Params& p) { p.sampling.temperature = kInfinity; }},
        Case{"", [](Params& p) { p.sampling.top_k = 1 << 30; }},
        Case{"sampling.top_k", [](Params& p) { p.sampling.top_k = -1; }},
        Case{"", [](Params& p) { p.sampling.typical_p = 1e-6f; }},
        Case{"sampling.typical_p", [](Params& p) { p.sampling.typical_p = 0.0f; }},
        Case{"sampling.typical_p", [](Params& p) { p.sampling.typical_p = 1.1f; }},
        Case{"sampling.top_p", [](Params& p) { p.sampling.top_p = 0.0f; }},
        Case{"sampling.top_p", [](Params& p) { p.sampling.top_p = 1.5f; }},
        Case{"sampling.top_p", [](Params& p) { p.sampling.top_p = kNan; }},
        Case{"", [](Params& p) { p.sampling.min_p = 1.0f; }},
        Case{"sampling.min_p", [](Params& p) { p.sampling.min_p = -0.1f; }},
        Case{"sampling.min_p", [](Params& p) { p.sampling.min_p = 1.1f; }},
        Case{"", [](Params& p) { p.sampling.presence_penalty = -2.0f; }},
        Case{"sampling.presence_penalty", [](Params& p) { p.sampling.presence_penalty = 2.1f; }},
        Case{"sampling.frequency_penalty", [](Params& p) { p.sampling.frequency_penalty = -3.0f; }},
        Case{"", [](Params& p) { p.sampling.repetition_penalty = 10.0f; }},
        Case{"sampling.repetition_penalty",
             [](Params& p) { p.sampling.repetition_penalty = 0.0f; }},
        Case{"sampling.repetition_penalty",
             [](Params& p) { p.sampling.repetition_penalty = 10.5f; }},
        Case{"", [](Params& p) { p.sampling.penalty_last_n = 0; }},
        Case{"sampling.penalty_last_n", [](Params& p) { p.sampling.penalty_last_n = -2; }},
        Case{"", [](Params& p) { p.sampling.n = 64; }},
        Case{"sampling.n", [](Params& p) { p.sampling.n = 0; }},
        Case{"sampling.n", [](Params& p) { p.sampling.n = 65; }},
        Case{"", [](Params& p) { p.sampling.best_of = 64; }},
        Case{"", [](Params& p) { p.sampling.best_of = p.sampling.n = 3; }},
        Case{"sampling.best_of", [](Params& p) { p.sampling.best_of = 0; }},
        Case{"sampling.best_of", [](Params& p) { p.sampling.best_of = 65; }},
        Case{"sampling.best_of",
             [](Params& p) {
               p.sampling.n = 3;
               p.sampling.best_of = 2;
             }},
        Case{"", [](Params& p) { p.sampling.beam = {.width = 32, .num_return = 32}; }},
        Case{"", [](Params& p) { p.sampling.beam = {.width = 2, .length_penalty = -5.0f}; }},
        Case{"sampling.beam.width", [](Params& p) { p.sampling.beam = {.width = 0}; }},
        Case{"sampling.beam.width", [](Params& p) { p.sampling.beam = {.width = 1}; }},
        Case{"sampling.beam.width", [](Params& p) { p.sampling.beam = {.width = 33}; }},
        Case{"sampling.beam.length_penalty",
             [](Params& p) { p.sampling.beam = {.width = 2, .length_penalty = 5.1f}; }},
        Case{"sampling.beam.length_penalty",
             [](Params& p) { p.sampling.beam = {.width = 2, .length_penalty = kNan}; }},
        Case{"sampling.beam.num_return",
             [](Params& p) { p.sampling.beam = {.width = 2, .num_return = 0}; }},
        Case{"sampling.beam.num_return",
             [](Params& p) { p.sampling.beam = {.width = 2, .num_return = 3}; }},
        Case{"sampling.n", [](Params& p) { (p = Searching()).sampling.n = 2; }},
        Case{"sampling.best_of", [](Params& p) { (p = Searching()).sampling.best_of = 1; }},
        Case{"sampling.temperature",
             [](Params& p) { (p = Searching()).sampling.temperature = 0.0f; }},
        Case{"sampling.top_k", [](Params& p) { (p = Searching()).sampling.top_k = 5; }},
        Case{"sampling.typical_p", [](Params& p) { (p = Searching()).sampling.typical_p = 0.5f; }},
        Case{"sampling.top_p", [](Params& p) { (p = Searching()).sampling.top_p = 0.5f; }},
        Case{"sampling.min_p", [](Params& p) { (p = Searching()).sampling.min_p = 0.5f; }},
        Case{"sampling.presence_penalty",
             [](Params& p) { (p = Searching()).sampling.presence_penalty = 0.5f; }},
        Case{"sampling.frequency_penalty",
             [](Params& p) { (p = Searching()).sampling.frequency_penalty = 0.5f; }},
        Case{"sampling.repetition_penalty",
             [](Params& p) { (p = Searching()).sampling.repetition_penalty = 0.5f; }},
        Case{"sampling.logit_bias",
             [](Params& p) { (p = Searching()).sampling.logit_bias = {{1, 1.0f}}; }},
        Case{"stop.stop", [](Params& p) { (p = Searching()).stop.stop = {"x"}; }},
        Case{"output.top_logprobs", [](Params& p) { (p = Searching()).output.top_logprobs = 0; }},
        Case{"output.prompt_logprobs",
             [](Params& p) { (p = Searching()).output.prompt_logprobs = 0; }},
        Case{"cache.window_tokens",
             [](Params& p) { (p = Searching()).cache.window_tokens = 64; }},
        Case{"", [](Params& p) { p.sampling.logit_bias.assign(1024, {99, -100.0f}); }},
        Case{"sampling.logit_bias", [](Params& p) { p.sampling.logit_bias.assign(1025, {}); }},
        Case{"sampling.logit_bias", [](Params& p) { p.sampling.logit_bias = {{100, 1.0f}}; }},
        Case{"sampling.logit_bias", [](Params& p) { p.sampling.logit_bias = {{1, 100.5f}}; }},
        Case{"sampling.logit_bias", [](Params& p) { p.sampling.logit_bias = {{1, kNan}}; }},
        Case{"", [](Params& p) { p.sampling.allowed_token_ids = {0, 99}; }},
        Case{"sampling.allowed_token_ids", [](Params& p) { p.sampling.allowed_token_ids = {-1}; }},
        Case{"sampling.allowed_token_ids", [](Params& p) { p.sampling.allowed_token_ids = {100}; }},
        Case{"", [](Params& p) { p.sampling.allowed_token_ids.assign(100, 7); }},
        Case{"sampling.allowed_token_ids",
             [](Params& p) { p.sampling.allowed_token_ids.assign(101, 7); }},
        Case{"", [](Params& p) { p.stop.max_tokens = 1; }},
        Case{"stop.max_tokens", [](Params& p) { p.stop.max_tokens = 0; }},
        Case{"", [](Params& p) { p.stop = {.max_tokens = 3, .min_tokens = 3}; }},
        Case{"stop.min_tokens", [](Params& p) { p.stop = {.max_tokens = 3, .min_tokens = 4}; }},
        Case{"stop.min_tokens", [](Params& p) { p.stop.min_tokens = -1; }},
        Case{"", [](Params& p) { p.stop.stop.assign(16, std::string(256, 'x')); }},
        Case{"stop.stop", [](Params& p) { p.stop.stop.assign(17, "x"); }},
        Case{"stop.stop", [](Params& p) { p.stop.stop = {"x", ""}; }},
        Case{"stop.stop", [](Params& p) { p.stop.stop = {std::string(257, 'x')}; }},
        Case{"stop.stop_token_ids", [](Params& p) { p.stop.stop_token_ids = {5, 100}; }},
        Case{"", [](Params& p) { p.stop.stop_token_ids.assign(100, 7); }},
        Case{"stop.stop_token_ids", [](Params& p) { p.stop.stop_token_ids.assign(101, 7); }},
        Case{"", [](Params& p) { p.output.top_logprobs = 20; }},
        Case{"output.top_logprobs", [](Params& p) { p.output.top_logprobs = 21; }},
        Case{"output.top_logprobs", [](Params& p) { p.output.top_logprobs = -1; }},
        Case{"output.prompt_logprobs", [](Params& p) { p.output.prompt_logprobs = 21; }},
        Case{"", [](Params& p) { p.cache.salt.assign(256, 's'); }},
        Case{"cache.salt", [](Params& p) { p.cache.salt.assign(257, 's'); }},
        Case{"", [](Params& p) { p.sched.priority = -100; }},
        Case{"sched.priority", [](Params& p) { p.sched.priority = 101; }},
        Case{"sched.tenant", [](Params& p) { p.sched.tenant.assign(257, 't'); }},
        Case{"sched.tenant", [](Params& p) { p.cache.part.assign(257, 't'); }}));

TEST(ValidateMessageTest, WholeNumbersAreWrittenWhole) {
  Params params;
  params.sampling.n = 1000000;
  EXPECT_EQ(Check(params).message(), "sampling.n: want 1..64, got 1000000");
  params = {};
  params.sched.priority = 2147483647;
  EXPECT_EQ(Check(params).message(), "sched.priority: want -100..100, got 2147483647");
}

TEST(ValidateMessageTest, NamesWhatWasWantedAndGot) {
  Params params;
  params.sampling.top_p = 1.5f;
  EXPECT_EQ(Check(params).message(), "sampling.top_p: want (0, 1], got 1.5");
  params = {};
  params.stop.stop_token_ids = {100};
  EXPECT_EQ(Check(params).message(), "stop.stop_token_ids: want token ids 0..99, got 100");
}

}  // namespace
}  // namespace quire::engine
