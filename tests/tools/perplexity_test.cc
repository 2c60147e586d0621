#include "tools/perplexity.h"

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/json.h"
#include "tests/testing/temp_directory.h"
#include "tests/testing/test_data.h"
#include "tests/tools/run_command.h"
#include "tools/inspect_command.h"

namespace quire::tools {
namespace {

using nlohmann::json;
using ::quire::testing::TempDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Model() { return testing::TestSourcePath("../models/quire-stories"); }
std::string Text() { return testing::TestSourcePath("tools/testdata/perplexity_text.txt"); }

TEST(PerplexityWindowsTest, LlamaCppsRuleScoresBehindTheFirstHalfAndDropsTheRest) {
  EXPECT_THAT(*MakeWindows(20, {.context = 8}),
              ElementsAre(TextWindow{0, 8, 5}, TextWindow{8, 16, 13}));
  EXPECT_THAT(*MakeWindows(20, {.context = 8, .max_windows = 1}), ElementsAre(TextWindow{0, 8, 5}));
  EXPECT_EQ(MakeWindows(7, {.context = 8}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PerplexityWindowsTest, TheStridedRuleScoresEveryTokenButTheFirstOnce) {
  EXPECT_THAT(*MakeWindows(20, {.context = 8, .stride = 5}),
              ElementsAre(TextWindow{0, 8, 1}, TextWindow{5, 13, 8}, TextWindow{10, 18, 13},
                          TextWindow{15, 20, 18}));
  // If windows do not overlap, the first token of each window is not scored, because no token comes
  // before it.
  EXPECT_THAT(*MakeWindows(8, {.context = 4, .stride = 4}),
              ElementsAre(TextWindow{0, 4, 1}, TextWindow{4, 8, 5}));
  EXPECT_THAT(*MakeWindows(5, {.context = 8, .stride = 8}), ElementsAre(TextWindow{0, 5, 1}));
  EXPECT_FALSE(MakeWindows(1, {.context = 8, .stride = 8}).ok());
}

TEST(PerplexityTest, EqualsTheReferenceInFloat64ByEitherRule) {
  const std::string path = testing::TestSourcePath("tools/testdata/perplexity_goldens.json");
  const json goldens = *base::ParseJson(testing::ReadFile(path), path);
  for (const json& golden : goldens) {
    std::vector<std::string> args = {"--perplexity",   Model(),
                                     Text(),           "--json",
                                     "--kv_dtype=f32", "--context=" + golden.at("context").dump()};
    if (golden.at("stride") != 0) args.push_back("--stride=" + golden.at("stride").dump());
    const Result result = RunInspect(args);
    ASSERT_EQ(result.status, 0) << result.err;
    const json report = json::parse(result.out);
    EXPECT_EQ(report.at("num_scored"), golden.at("num_scored"));
    // If each logit is off by at most b, each log-probability is off by at most 2 b, and so is the
    // mean of the log-probabilities.
    const double error = std::log(report.at("perplexity").get<double>()) -
                         std::log(golden.at("perplexity").get<double>());
    EXPECT_LE(std::abs(error), 2 * golden.at("logit_bound").get<double>()) << golden;
    EXPECT_GT(report.at("error"), 0.0);
  }
}

// The two names of the type are one, and it changes the answer.
TEST(PerplexityTest, TakesAnFp8Cache) {
  const auto with_cache = [](const std::string& dtype) {
    return RunInspect({"--perplexity", Model(), Text(), "--json", "--context=32", "--windows=2",
                       "--kv_dtype=" + dtype});
  };
  std::vector<double> found;
  for (const char* dtype : {"f32", "fp8", "fp8_e4m3"}) {
    const Result result = with_cache(dtype);
    ASSERT_EQ(result.status, 0) << result.err;
    const json report = json::parse(result.out);
    EXPECT_EQ(report.at("kv_dtype"), found.empty() ? "f32" : "fp8_e4m3");
    found.push_back(report.at("perplexity"));
  }
  EXPECT_NE(found[0], found[1]);
  EXPECT_EQ(found[1], found[2]);
  EXPECT_THAT(with_cache("fp7").err,
              HasSubstr("kv_dtype: want auto|f32|f16|bf16|fp8_e4m3, got \"fp7\""));
}

engine::EngineParts LoadParts(int32_t max_num_batched_tokens, std::string backend = "cpu") {
  return *engine::LoadEngineParts({.model_path = Model(),
                                   .backend = std::move(backend),
                                   .threads = 2,
                                   .max_num_seqs = 1,
                                   .max_num_batched_tokens = max_num_batched_tokens,
                                   .max_model_len = 100});
}

TEST(PerplexityTest, IsTheSameToTheBitInStepsOfAnySize) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 250; ++i) tokens.push_back(300 + i * 37 % 3000);
  std::vector<Perplexity> results;
  for (const int32_t step : {1, 7, 128}) {
    engine::EngineParts parts = LoadParts(step);
    int64_t num_heard = 0;
    const auto result = ComputePerplexity(parts, tokens, {.context = 100}, /*bos_id=*/0,
                                          [&](const Perplexity& so_far) {
                                            EXPECT_EQ(so_far.num_windows, ++num_heard);
                                            EXPECT_EQ(so_far.num_scored, 49 * num_heard);
                                          });
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(num_heard, 2);
    results.push_back(*result);
  }
  EXPECT_EQ(results[0].perplexity, results[1].perplexity);
  EXPECT_EQ(results[0].perplexity, results[2].perplexity);
  EXPECT_EQ(results[0].error, results[2].error);
}

#if defined(QUIRE_CUDA_EMULATED)
// The logits of the emulated GPU are in memory that the host cannot access. The GPU backend rounds
// activations to bfloat16, and the CPU backend does not. So the mean losses may differ by 2^-8 of
// their size, the precision of bfloat16.
TEST(PerplexityTest, IsNearlyTheSameOnADevice) {
  const std::vector<int32_t> tokens = {501, 17, 260, 902, 44, 1203, 77, 318, 290, 1500, 12, 640};
  std::vector<double> results;
  for (const char* const backend : {"cpu", "cuda-emulated"}) {
    engine::EngineParts parts = LoadParts(16, backend);
    const auto result =
        ComputePerplexity(parts, tokens, {.context = 12}, /*bos_id=*/0, [](const Perplexity&) {});
    ASSERT_TRUE(result.ok()) << result.status();
    results.push_back(std::log(result->perplexity));
  }
  EXPECT_NEAR(results[1], results[0], results[0] * 0x1p-8);
}
#endif

TEST(PerplexityCommandTest, EndsWithOneLineOfNumbers) {
  const Result result =
      RunInspect({Model(), Text(), "--perplexity", "--context", "64", "--windows=2"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("perplexity="), HasSubstr(" rule=llama.cpp context=64 "),
                                HasSubstr(" windows=2 scored=62 tokens=")));
  EXPECT_EQ(std::ranges::count(result.out, '\n'), 1);
  EXPECT_THAT(result.err, HasSubstr("window 2 of 2, perplexity "));
}

TEST(PerplexityCommandTest, RefusalsSayWhatToChange) {
  const TempDirectory directory;
  const std::string brief = directory.Write("brief.txt", "Once upon a time");
  const auto refused = [&](const std::vector<std::string>& more, const std::string& text) {
    std::vector<std::string> args = {"--perplexity", Model(), text};
    args.insert(args.end(), more.begin(), more.end());
    const Result result = RunInspect(args);
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    return result.err;
  };
  EXPECT_THAT(refused({}, brief), AllOf(HasSubstr("want at least 512 tokens, got 5"),
                                        HasSubstr("a smaller --context")));
  EXPECT_THAT(refused({"--context=5000"}, Text()), HasSubstr("want at least 5000 tokens"))
      << "ALiBi ends at no context";
  EXPECT_THAT(refused({"--stride=600"}, Text()),
              HasSubstr("--stride: want at most --context, 512"));
  EXPECT_THAT(refused({}, directory.path() + "/absent"), HasSubstr("absent"));
  EXPECT_THAT(refused({"--cpu_isa=z80"}, Text()), HasSubstr("z80"));
  EXPECT_EQ(RunInspect({"--perplexity", Model()}).status, 2);
  EXPECT_EQ(RunInspect({"--perplexity", Model(), Text(), "--context=x"}).status, 2);
}

}  // namespace
}  // namespace quire::tools
