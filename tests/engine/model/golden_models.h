#pragma once

// The saved logits of tiny Llamas, by transformers in float64: testdata/llama_goldens.json.

#include <memory>
#include <string>
#include <vector>

#include "engine/model/model_config.h"
#include "kernels/backend.h"
#include "tests/engine/model/golden_logits.h"
#include "tests/engine/model/model_runner.h"
#include "tests/testing/in_memory_weights.h"

namespace quire::testing {

struct GoldenLlama : GoldenLogits {
  std::string name;
  engine::ModelConfig config;
  TinyLlamaShape shape;
};

std::vector<GoldenLlama> ReadGoldenLlamas();

// One of them, with its weights, on a backend of its own.
class GoldenLlamaRunner {
 public:
  GoldenLlamaRunner(const GoldenLlama& golden, std::unique_ptr<kernels::Backend> backend,
                    bool gguf_naming = false);

  ModelRunner* operator->() { return &runner_; }

 private:
  std::unique_ptr<kernels::Backend> backend_;
  InMemoryWeights weights_;
  ModelRunner runner_;
};

}  // namespace quire::testing
