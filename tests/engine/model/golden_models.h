#pragma once

// Randomly initialised tiny models and their saved logits. transformers made
// testdata/llama_goldens.json in float64. make_family_goldens.py made testdata/family_goldens.json.

#include <memory>
#include <string>
#include <vector>

#include "engine/model/model_config.h"
#include "engine/model/tensor_names.h"
#include "kernels/backend.h"
#include "kernels/communicator.h"
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

// Returns the Llamas. Their tensors have Hugging Face names. If `gguf_naming` is true, they have
// GGUF names instead, and Q and K have interleaved rotary positions.
std::vector<GoldenModel> ReadGoldenLlamas(bool gguf_naming = false);
// Returns the models of the other families, such as MPT, BLOOM, Falcon and GPT-NeoX, and Llamas
// with RoPE scaling.
std::vector<GoldenModel> ReadGoldenFamilies();
// Returns all models, with the Llamas in both namings. Under a sanitizer, returns only some of
// them.
std::vector<GoldenModel> ReadGoldenModels();

// A golden model on a backend of its own.
class GoldenRunner {
 public:
  // With a communicator, the runner is one rank.
  GoldenRunner(const GoldenModel& golden, std::unique_ptr<kernels::Backend> backend,
               kernels::Communicator* communicator = nullptr);

  ModelRunner* operator->() { return &runner_; }

 private:
  std::unique_ptr<kernels::Backend> backend_;
  ModelRunner runner_;
};

}  // namespace quire::testing
