#include "convert/llama_cpp.h"

#include <filesystem>
#include <string>

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

LlamaCppReading ReadingOf(const std::string& golden) {
  for (const GoldenModel& model : testing::ReadGoldenFamilies()) {
    if (model.name == golden) return ReadingOfLlamaCpp(WithRopeDivisors(model.config));
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

TEST(LlamaCppTest, TellsWhatItReadsOtherwise) {
  EXPECT_THAT(ReadingOf("phi3_window").read_other, ElementsAre("without its window of 33 tokens"));
  // The betas are written as divisors of the frequencies.
  EXPECT_THAT(ReadingOf("rope_yarn_betas").read_other, IsEmpty());
  for (const GoldenModel& model : testing::ReadGoldenFamilies()) {
    if (model.name != "rope_yarn_betas") continue;
    engine::ModelConfig config = model.config;
    config.architecture = "qwen2";  // llama.cpp has no divisors there
    EXPECT_THAT(ReadingOfLlamaCpp(WithRopeDivisors(config)).read_other,
                ElementsAre(HasSubstr("beta_fast")));
  }
}

TEST(LlamaCppTest, TheConverterRefusesWhatItCannotLoadUnlessForQuire) {
  const TempDirectory directory;
  const std::string path = directory.path() + "/model.gguf";
  for (const GoldenModel& model : testing::ReadGoldenFamilies()) {
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
