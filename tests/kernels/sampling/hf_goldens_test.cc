// Compares the sampling stages with the logits processors of HF transformers
// (testdata/make_hf_goldens.py).

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/json.h"
#include "kernels/sampling/kept_set.h"
#include "kernels/sampling/min_p.h"
#include "kernels/sampling/penalties.h"
#include "kernels/sampling/row_passes.h"
#include "kernels/sampling/top_k_top_p.h"
#include "kernels/sampling/typical_p.h"
#include "tests/testing/test_data.h"

namespace quire::kernels::sampling {
namespace {

nlohmann::json Goldens() {
  const std::string path = testing::TestSourcePath("kernels/sampling/testdata/hf_goldens.json");
  auto json = base::ParseJson(testing::ReadFile(path), "hf_goldens.json");
  return json.ok() ? *std::move(json) : nlohmann::json();
}

std::vector<float> Logits(const nlohmann::json& golden) {
  std::vector<float> logits;
  for (const int x : golden["logits_x1024"]) logits.push_back(static_cast<float>(x) / 1024.0f);
  return logits;
}

TEST(HfGoldensTest, KeepsTheSameIds) {
  const nlohmann::json goldens = Goldens()["cuts"];
  ASSERT_EQ(goldens.size(), 36u);
  for (const nlohmann::json& golden : goldens) {
    const std::vector<float> logits = Logits(golden);
    std::vector<float> maxima(NumRowBlocks(std::ssize(logits)));
    BlockMaxima(logits, maxima);
    KeptSet kept;
    kept.Reset(logits, maxima, golden["temperature"].get<float>());
    TypicalP typical_p;
    ApplyTopK(golden["top_k"].get<int32_t>(), kept);
    typical_p.Apply(golden["typical_p"].get<float>(), kept);
    ApplyTopP(golden["top_p"].get<float>(), kept);
    ApplyMinP(golden["min_p"].get<float>(), kept);
    std::vector<int32_t> ids;
    for (const Candidate& candidate : kept.list()) ids.push_back(candidate.id);
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(ids, golden["kept"].get<std::vector<int32_t>>()) << golden;
  }
}

TEST(HfGoldensTest, PenalizesRepetitionAlike) {
  const nlohmann::json goldens = Goldens()["penalties"];
  ASSERT_EQ(goldens.size(), 3u);
  for (const nlohmann::json& golden : goldens) {
    std::vector<float> logits = Logits(golden);
    const auto tokens = golden["tokens"].get<std::vector<int32_t>>();
    Penalties penalties(static_cast<int32_t>(logits.size()));
    penalties.Apply({.repetition_penalty = golden["repetition_penalty"].get<float>()}, tokens,
                    std::ssize(tokens) / 2, logits);
    EXPECT_EQ(logits, golden["scores"].get<std::vector<float>>()) << golden;
  }
}

}  // namespace
}  // namespace quire::kernels::sampling
