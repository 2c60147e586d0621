// Tests that the model models/quire-stories of the repository gives the tokens of the float64
// reference.

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "base/json.h"
#include "engine/frontend/token_ids.h"
#include "engine/frontend/tokenizer_loader.h"
#include "engine/model/model_config_reader.h"
#include "engine/model/model_registry.h"
#include "files/model_files.h"
#include "kernels/backend_registry.h"
#include "tests/engine/model/model_runner.h"
#include "tests/testing/test_data.h"

namespace quire::engine {
namespace {

TEST(BundledModelTest, TakesTheTokensOfTheReference) {
  const absl::StatusOr<files::OpenedModel> files =
      files::OpenModelFiles(testing::TestSourcePath("../models/quire-stories"));
  ASSERT_TRUE(files.ok()) << files.status();
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(*files);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto tokenizer = LoadTokenizer(*files);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto backend = *kernels::CreateBackend({.name = "cpu", .num_threads = 2});
  auto model = CreateModel(*config, *files, *backend, testing::ModelRunner::kLimits);
  ASSERT_TRUE(model.ok()) << model.status();
  testing::ModelRunner runner(*std::move(model), *backend);

  const std::string path = testing::TestSourcePath("engine/model/testdata/bundled_goldens.json");
  const nlohmann::json cases = *base::ParseJson(testing::ReadFile(path), path);
  int64_t compared = 0, of = 0;
  for (const nlohmann::json& golden : cases) {
    const std::string prompt = golden.at("prompt");
    SCOPED_TRACE(prompt);
    const std::vector<int32_t> ids = golden.at("ids");
    const std::vector<double> margins = golden.at("margins");
    const double bound = golden.at("bound");
    const int64_t num_prompt = golden.at("num_prompt_tokens");
    EXPECT_EQ(Ids(*(*tokenizer)->Encode(prompt, {})),
              std::vector<int32_t>(ids.begin(), ids.begin() + num_prompt));
    const testing::Logits logits = runner.Prefill(ids);
    for (int64_t i = num_prompt; i < std::ssize(ids); ++i) {
      ++of;
      if (margins[i - num_prompt] <= 2 * bound) continue;
      ++compared;
      const auto row = logits.begin() + (i - 1) * config->vocab_size;
      EXPECT_EQ(std::max_element(row, row + config->vocab_size) - row, ids[i]) << "position " << i;
    }
  }
  EXPECT_GE(compared * 100, of * 95) << "margins decide too few of the tokens";
}

}  // namespace
}  // namespace quire::engine
