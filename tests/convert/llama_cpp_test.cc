#include "convert/llama_cpp.h"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "convert/config_to_gguf.h"
#include "convert/converter.h"
#include "tests/engine/model/golden_models.h"
#include "tests/testing/temp_directory.h"

namespace quire::convert {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::GoldenModel;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TempDirectory;

const std::vector<GoldenModel>& Families() {
  static const std::vector<GoldenModel> families = testing::ReadGoldenFamilies();
  return families;
}

// Returns the reading of a golden model's file, after `edit`.
LlamaCppReading ReadingOf(const std::string& golden,
                          const std::function<void(engine::ModelConfig&)>& edit = {}) {
  for (const GoldenModel& model : Families()) {
    if (model.name != golden) continue;
    engine::ModelConfig config = model.config;
    if (edit) edit(config);
    return ReadingOfLlamaCpp(WithRopeDivisors(config));
  }
  ADD_FAILURE() << golden << ": no such golden";
  return {};
}

// Each was seen in llama.cpp: tests/convert/compare_with_llama_cpp.py.
TEST(LlamaCppTest, TellsWhatItCannotLoad) {
  EXPECT_THAT(ReadingOf("neox_no_bias").cannot_load, HasSubstr("wants biases"));
  EXPECT_THAT(ReadingOf("neox_whole_heads").cannot_load, HasSubstr("a head besides"));
  EXPECT_THAT(ReadingOf("falcon_7b_biases").cannot_load, HasSubstr("no biases"));
  EXPECT_THAT(ReadingOf("qwen3_biases").cannot_load, HasSubstr("no biases"));
  EXPECT_THAT(ReadingOf("qwen3_moe_normed").cannot_load, HasSubstr("no biases"));
  EXPECT_THAT(ReadingOf("mpt_qk_ln").cannot_load, HasSubstr("as wide as"));
  for (const char* loaded : {"neox", "falcon_7b", "qwen3", "mpt", "phi3", "rope_yarn", "gpt2"}) {
    EXPECT_EQ(ReadingOf(loaded).cannot_load, "") << loaded;
    EXPECT_THAT(ReadingOf(loaded).read_other, IsEmpty()) << loaded;
  }
}

// One of attention and MLP is enough.
TEST(LlamaCppTest, BiasesAreLookedForInBothHalvesOfALayer) {
  for (const bool of_attention : {true, false}) {
    const auto turn = [&](engine::ModelConfig& config) {
      engine::LayerSpec& layer = config.layers[0];
      bool& bias = of_attention ? layer.attention.bias : layer.feed_forward.bias;
      bias = !bias;
    };
    EXPECT_THAT(ReadingOf("neox", turn).cannot_load, HasSubstr("wants biases")) << of_attention;
    for (const char* without : {"falcon_7b", "qwen3"}) {
      EXPECT_THAT(ReadingOf(without, turn).cannot_load, HasSubstr("no biases")) << without;
    }
  }
}

TEST(LlamaCppTest, TellsWhatItReadsOtherwise) {
  EXPECT_THAT(ReadingOf("phi3_window").read_other, ElementsAre("without its window of 33 tokens"));
  for (const int less : {0, 1}) {
    const auto shorten = [less](engine::ModelConfig& config) {
      config.layers[0].attention.pattern =
          kernels::AttentionPattern::Window(config.max_position_embeddings - less);
    };
    EXPECT_EQ(ReadingOf("phi3_window", shorten).read_other.size(), static_cast<size_t>(less))
        << "a window of the whole context leaves nothing out";
  }
  // The betas are written as divisors of the frequencies.
  EXPECT_THAT(ReadingOf("rope_yarn_betas").read_other, IsEmpty());
}

// llama.cpp has divisors of the frequencies in files of the llama architecture alone.
TEST(LlamaCppTest, EachPropertyOfAnOddYarnIsToldWhereNoDivisorsReplaceIt) {
  using engine::ModelConfig;
  const std::function<void(ModelConfig&)> odd[] = {
      [](ModelConfig& config) { config.ropes[0].beta_fast = 31.0; },
      [](ModelConfig& config) { config.ropes[0].beta_slow = 2.0; },
      [](ModelConfig& config) { config.ropes[0].truncate = false; }};
  const auto of_qwen2 = [](ModelConfig& config) { config.architecture = "qwen2"; };
  EXPECT_THAT(ReadingOf("rope_yarn", of_qwen2).read_other, IsEmpty());
  for (const auto& edit : odd) {
    EXPECT_THAT(ReadingOf("rope_yarn", edit).read_other, IsEmpty());
    const auto both = [&](ModelConfig& config) {
      edit(config);
      of_qwen2(config);
    };
    EXPECT_THAT(ReadingOf("rope_yarn", both).read_other, ElementsAre(HasSubstr("beta_fast")));
  }
}

TEST(LlamaCppTest, TheConverterRefusesWhatItCannotLoadUnlessForQuire) {
  const TempDirectory directory;
  const std::string path = directory.path() + "/model.gguf";
  for (const GoldenModel& model : Families()) {
    const auto convert = [&](bool for_quire_alone) {
      return ConvertWeights(model.config, model.names, *model.weights, files::GgufValues(), path,
                            {.for_quire_alone = for_quire_alone});
    };
    if (model.name == "neox_no_bias") {
      EXPECT_THAT(std::string(convert(false).status().message()),
                  AllOf(HasSubstr("it wants biases"), HasSubstr("--for quire")));
      EXPECT_FALSE(std::filesystem::exists(path));
      EXPECT_TRUE(convert(true).ok());
    } else if (model.name == "phi3_window") {
      EXPECT_THAT(
          convert(false)->warnings,
          ElementsAre(HasSubstr("llama.cpp reads this file as a model without its window")));
      EXPECT_THAT(convert(true)->warnings, IsEmpty());
    }
  }
}

}  // namespace
}  // namespace quire::convert
