#pragma once

// Reports the contents of a model file, and the memory that a server needs for the model. Needs no
// running server.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

#include "engine/model/model_config.h"
#include "files/model_files.h"

namespace quire::tools {

struct TypeUse {
  int64_t num_tensors = 0;
  int64_t num_bytes = 0;
  int64_t num_parameters = 0;
};

struct TensorRow {
  std::string name;
  std::string type;
  std::vector<int64_t> shape;
  int64_t num_bytes = 0;
};

// A report on a model file. Strings are as in the file, unescaped. The number -1 means "unknown".
struct ModelReport {
  std::string path;
  std::string format;  // "GGUF v3", "safetensors"
  std::string name;
  std::string architecture;  // the name in the file, even when we do not support it
  // OK when the server could use the model's description, tensors and tokenizer.
  absl::Status supported;
  engine::ModelConfig config;            // when supported.ok()
  std::map<std::string, TypeUse> types;  // by name of the type
  std::vector<TensorRow> tensors;
  std::string tokenizer;  // "gpt2, pre-tokenizer smollm"; empty: the file has none
  std::string tokenizer_warning;
  int64_t num_tokens = -1;  // of the tokenizer; the model's vocabulary is config.vocab_size
  int32_t bos_id = -1;
  std::vector<int32_t> end_ids;
  bool has_chat_template = false;
  std::string chat_template_error;  // why the chat template cannot be used; empty: it can

  TypeUse Total() const;
  // Returns the bytes of KV cache that one token takes in f16; 0 when the model is not supported.
  int64_t kv_bytes_per_token() const;
  // Returns the bytes of KV cache that one full context takes in f16. A layer with a window keeps
  // only the tokens of its window.
  int64_t kv_bytes_per_context() const;
  // Returns the bytes of the weights and of the KV cache of one full context.
  int64_t memory_bytes() const;
};

ModelReport Inspect(const files::OpenedModel& model);

std::string ToText(const ModelReport& report, bool with_tensors);
nlohmann::ordered_json ToJson(const ModelReport& report, bool with_tensors);

}  // namespace quire::tools
