#pragma once

// Randomly initialised tiny models and their saved logits: testdata/llama_goldens.json, by
// transformers in float64, and testdata/family_goldens.json (make_family_goldens.py).

#include <memory>
#include <string>
#include <vector>

#include "engine/model/model_config.h"
#include "engine/model/tensor_names.h"
#include "kernels/backend.h"
#include "tests/engine/model/golden_logits.h"
#include "tests/engine/model/model_runner.h"
#include "tests/testing/in_memory_weights.h"

namespace quire::testing {

struct GoldenModel : GoldenLogits {
  std::string name;
  engine::ModelConfig config;
  std::shared_ptr<const InMemoryWeights> weights;
  engine::TensorNames names;
};

// Named as Hugging Face does, or as GGUF does with interleaved rotary positions.
std::vector<GoldenModel> ReadGoldenLlamas(bool gguf_naming = false);
// MPT, BLOOM, Falcon, GPT-NeoX, Qwen 2 and 3, Llamas of stretched positions.
std::vector<GoldenModel> ReadGoldenFamilies();
// All of them; under a sanitizer some of each family.
std::vector<GoldenModel> ReadGoldenModels();

// One of them on a backend of its own.
class GoldenRunner {
 public:
  GoldenRunner(const GoldenModel& golden, std::unique_ptr<kernels::Backend> backend);

  ModelRunner* operator->() { return &runner_; }

 private:
  std::unique_ptr<kernels::Backend> backend_;
  ModelRunner runner_;
};

}  // namespace quire::testing
