// Tests whole models whose weights are K-quants, in llama.cpp's format. The expected logits come
// from a float run with the weights that the PyPI package gguf reads from the same files.

#include <set>
#include <string>

#include "gmock/gmock.h"
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

using kernels::WeightType;

std::string TestDataFile(const std::string& name) {
  return testing::TestSourcePath("engine/model/testdata/" + name);
}

TEST(KQuantTest, LogitsAndArgmaxAgreeWithTheDequantisedWeights) {
  const std::string path = TestDataFile("k_quant_goldens.json");
  const nlohmann::json file = *base::ParseJson(testing::ReadFile(path), path);
  std::set<WeightType> types;
  int runs = 0;
  for (const nlohmann::json& entry : file.at("cases")) {
    const testing::GoldenLogits golden = testing::ReadGoldenLogits(entry);
    const absl::StatusOr<files::OpenedModel> files =
        files::OpenModelFiles(TestDataFile(entry.at("file")));
    ASSERT_TRUE(files.ok()) << files.status();
    for (const files::TensorInfo& tensor : files->weights->tensors()) types.insert(tensor.type);
    const absl::StatusOr<ModelConfig> config = ReadModelConfig(*files);
    ASSERT_TRUE(config.ok()) << config.status();
    for (const char* isa : {"portable", "avx2", "avx512", "amx"}) {
      for (const bool pack : {true, false}) {
        const auto backend = kernels::CreateBackend(
            {.name = "cpu", .cpu_isa = isa, .num_threads = 2, .pack_weights = pack});
        if (!backend.ok()) continue;  // this machine has no such ISA
        SCOPED_TRACE(isa);
        auto model = CreateModel(*config, *files, **backend, testing::ModelRunner::kLimits);
        ASSERT_TRUE(model.ok()) << model.status();
        testing::ModelRunner runner(*std::move(model), **backend);
        testing::ExpectAgreement(config->weight_type + " " + isa, golden,
                                 runner.Prefill(golden.ids));
        ++runs;
      }
    }
  }
  EXPECT_GE(runs, 4) << "the portable path is on every machine";
  EXPECT_THAT(types,
              ::testing::IsSupersetOf({WeightType::kQ4_K, WeightType::kQ5_K, WeightType::kQ6_K}));
}

}  // namespace
}  // namespace quire::engine
