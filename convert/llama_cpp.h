#pragma once

// What llama.cpp makes of the GGUF file of a model, where that is not what Quire makes of it.
// Checked with llama.cpp itself by tests/convert/compare_with_llama_cpp.py.

#include <string>
#include <vector>

#include "engine/model/model_config.h"

namespace quire::convert {

struct LlamaCppReading {
  std::string cannot_load;  // why llama.cpp cannot load the file; empty: it can
  std::vector<std::string>
      read_other;  // how llama.cpp reads the model, where that gives other answers
};

LlamaCppReading ReadingOfLlamaCpp(const engine::ModelConfig& config);

}  // namespace quire::convert
