// Tests whole models from GGUF files with llama.cpp's layout. llama.cpp ran each of the files and
// agreed with the saved logits (make_gguf_goldens.py).

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "base/json.h"
#include "engine/model/model_config_reader.h"
#include "engine/model/model_registry.h"
#include "files/model_files.h"
#include "kernels/backend_registry.h"
#include "tests/engine/model/model_runner.h"
#include "tests/testing/test_data.h"

namespace quire::engine {
namespace {

std::string GgufTestData(const std::string& name) {
  return testing::TestSourcePath("engine/model/testdata/" + name);
}

TEST(GgufModelsTest, LogitsAndArgmaxAgreeWithTheReference) {
  const std::string path = GgufTestData("gguf_goldens.json");
  const nlohmann::json file = *base::ParseJson(testing::ReadFile(path), path);
  int files_read = 0;
  for (const nlohmann::json& entry : file.at("cases")) {
    const std::string name = entry.at("name");
    SCOPED_TRACE(name);
    const testing::GoldenLogits golden = testing::ReadGoldenLogits(entry);
    const absl::StatusOr<files::OpenedModel> files =
        files::OpenModelFiles(GgufTestData(entry.at("file")));
    ASSERT_TRUE(files.ok()) << files.status();
    const absl::StatusOr<ModelConfig> config = ReadModelConfig(*files);
    ASSERT_TRUE(config.ok()) << config.status();
    const auto backend = *kernels::CreateBackend({.name = "cpu", .num_threads = 2});
    auto model = CreateModel(*config, *files, *backend, testing::ModelRunner::kLimits);
    ASSERT_TRUE(model.ok()) << model.status();
    testing::ModelRunner runner(*std::move(model), *backend);
    testing::ExpectAgreement(name + ".gguf", golden, runner.Prefill(golden.ids));
    ++files_read;
  }
  EXPECT_GE(files_read, 11);
}

}  // namespace
}  // namespace quire::engine
