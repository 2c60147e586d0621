#pragma once

// The model directory testdata/fp8_tensor with scales of its fp8 KV cache, and its logits from a
// float64 run that rounds K and V itself (make_fp8_goldens.py).

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "base/json.h"
#include "engine/model/cache_scales.h"
#include "engine/model/model_config_reader.h"
#include "engine/model/model_registry.h"
#include "files/model_files.h"
#include "tests/engine/model/golden_logits.h"
#include "tests/engine/model/model_runner.h"
#include "tests/testing/edited_weights.h"
#include "tests/testing/test_data.h"

namespace quire::testing {

// A model of one layer. With the scales of the goldens, the largest keys and values saturate.
class ScaledCacheModel {
 public:
  ScaledCacheModel() : files_(*files::OpenModelFiles(TestData("fp8_tensor"))) {
    const std::string path = TestData("fp8_goldens.json");
    const nlohmann::json entry = (*base::ParseJson(ReadFile(path), path)).at("cache_case");
    golden_ = ReadGoldenLogits(entry);
    scales_ = {.k = entry.at("k_scale"), .v = entry.at("v_scale")};
    base_ = std::move(files_.weights);
    auto edited = std::make_unique<EditedWeights>(*base_);
    weights_ = edited.get();
    files_.weights = std::move(edited);
    SetScales(scales_);
  }

  const GoldenLogits& golden() const { return golden_; }
  const kernels::CacheScales& scales() const { return scales_; }  // of the goldens

  void SetScales(const kernels::CacheScales& scales) {
    weights_->Set(kAttention + "k_scale", {}, {scales.k});
    weights_->Set(kAttention + "v_scale", {}, {scales.v});
  }
  // Makes K and V `factor` times as large, and what reads them as much smaller. All other numbers
  // of the model keep their bits if `factor` is a power of two.
  void Enlarge(float factor) {
    for (const char* name : {"k_proj", "v_proj"}) {
      weights_->Multiply(kAttention + name + ".weight_scale", factor);
    }
    for (const char* name : {"q_proj", "o_proj"}) {
      weights_->Multiply(kAttention + name + ".weight_scale", 1.0f / factor);
    }
  }
  // Returns the logits of the golden prompt, computed `chunk` tokens a step.
  Logits Run(kernels::Backend& backend, kernels::DType cache_dtype,
             int64_t chunk = ModelRunner::kLimits.max_tokens) const {
    engine::ModelConfig config = *engine::ReadModelConfig(files_);
    const absl::Status status = engine::ReadCacheScales(files_, config);
    EXPECT_TRUE(status.ok()) << status;
    ModelRunner runner(*engine::CreateModel(config, files_, backend, ModelRunner::kLimits), backend,
                       cache_dtype);
    return runner.Prefill(golden_.ids, chunk);
  }

 private:
  static std::string TestData(const std::string& name) {
    return TestSourcePath("engine/model/testdata/" + name);
  }

  const std::string kAttention = "model.layers.0.self_attn.";
  files::OpenedModel files_;
  std::unique_ptr<files::WeightMap> base_;
  EditedWeights* weights_ = nullptr;  // files_.weights
  GoldenLogits golden_;
  kernels::CacheScales scales_;
};

}  // namespace quire::testing
