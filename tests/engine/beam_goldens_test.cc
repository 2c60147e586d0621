// Tests that beam search on models/quire-stories finds what transformers finds in float64. The
// cases are those whose answers do not depend on the rounding of float32 (make_beam_goldens.py).

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/json.h"
#include "engine/engine.h"
#include "tests/testing/collecting_sink.h"
#include "tests/testing/test_data.h"

namespace quire::engine {
namespace {

GenerateParams RequestOf(const nlohmann::json& golden) {
  GenerateParams params;
  params.prompt = golden.at("prompt_ids").get<TokenIds>();
  params.sampling.beam = {.width = golden.at("width").get<int32_t>(),
                          .length_penalty = golden.at("length_penalty").get<float>(),
                          .early_stopping = static_cast<BeamParams::EarlyStopping>(
                              golden.at("early_stopping").get<int>()),
                          .num_return = golden.at("num_return").get<int32_t>()};
  params.stop.max_tokens = golden.at("max_tokens").get<int32_t>();
  params.stop.stop_token_ids = golden.at("stop_token_ids").get<TokenIds>();
  params.output.token_ids = true;
  params.answers_at_once = true;
  return params;
}

TEST(BeamGoldensTest, SequencesAndScoresAreThoseOfTransformers) {
  auto engine = Engine::Create({.model_path = testing::TestSourcePath("../models/quire-stories"),
                                .backend = "cpu",
                                .dtype = "f32",
                                .threads = 2,
                                .kv_dtype = "f32",
                                .kv_cache_mib = 64});
  ASSERT_TRUE(engine.ok()) << engine.status();
  const std::string path = testing::TestSourcePath("engine/testdata/beam_goldens.json");
  const nlohmann::json cases = *base::ParseJson(testing::ReadFile(path), path);
  int64_t num_answers = 0, num_early = 0;
  for (const nlohmann::json& golden : cases) {
    SCOPED_TRACE(golden.dump());
    const auto sink = std::make_shared<testing::CollectingSink>();
    ASSERT_TRUE((*engine)->Submit(RequestOf(golden), sink).ok());
    ASSERT_TRUE(sink->WaitFinished());
    ASSERT_TRUE(sink->status().ok()) << sink->status();
    int32_t rank = 0;
    for (const nlohmann::json& answer : golden.at("answers")) {
      const testing::CollectingSink::Sample got = sink->sample(rank++);
      EXPECT_EQ(got.token_ids, answer.at("ids").get<TokenIds>());
      const double score = answer.at("score").get<double>();
      EXPECT_NEAR(got.score.value_or(0.0), score, 1e-3 * std::max(1.0, std::abs(score)));
      ++num_answers;
      num_early += got.finish_reason == FinishReason::kStop ? 1 : 0;
    }
  }
  EXPECT_GE(num_answers, 40) << "margins decide too few of the cases";
  EXPECT_GE(num_early, 20);
}

}  // namespace
}  // namespace quire::engine
