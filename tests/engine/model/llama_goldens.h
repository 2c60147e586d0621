#pragma once

// The saved logits of tiny Llamas, by transformers in float64: testdata/llama_goldens.json.

#include <string>
#include <vector>

#include "engine/model/model_config.h"
#include "tests/testing/in_memory_weights.h"

namespace quire::engine {

using Logits = std::vector<float>;  // [num_tokens, vocab_size]

struct GoldenCase {
  std::string name;
  ModelConfig config;
  testing::TinyLlamaShape shape;
  std::vector<int32_t> ids;
  double bound = 0.0;  // on any logit, derived in make_goldens.py
  Logits logits;
};

std::vector<GoldenCase> ReadGoldens();

}  // namespace quire::engine
