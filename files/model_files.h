#pragma once

// Opens a model from a user's path: its tensors and all data that describes them.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

#include "files/gguf_metadata.h"
#include "files/weight_map.h"

namespace quire::files {

// The small files of a Hugging Face directory. Absent files are null or empty.
struct HfFiles {
  nlohmann::json config;             // config.json; always an object
  nlohmann::json generation_config;  // generation_config.json
  nlohmann::json tokenizer_config;   // tokenizer_config.json
  std::string tokenizer_json;        // tokenizer.json as text: large, and parsed only if needed
};

// Exactly one of `gguf` and `hf` is set; neither for a bare .safetensors file. The metadata's views
// live as long as `weights`.
struct OpenedModel {
  std::string path;       // the file or directory
  std::string file_name;  // its last part, for display
  std::unique_ptr<WeightMap> weights;
  std::optional<GgufMetadata> gguf;
  std::optional<HfFiles> hf;
  uint32_t gguf_version = 0;

  // "GGUF", "safetensors"
  std::string_view format() const { return gguf ? "GGUF" : "safetensors"; }
  // The model's own template, read from its place in the format; empty when there is none.
  // InvalidArgument when the value there is not a template.
  absl::StatusOr<std::string> ChatTemplate() const;

  std::string chat_template_jinja;  // the file's text in a Hugging Face directory; empty: absent
};

// Opens a .gguf file, a .safetensors file, or a Hugging Face directory (config.json beside
// model.safetensors, or beside model.safetensors.index.json and its shards). Only headers are read.
// Errors name the file, and the forms that are accepted.
absl::StatusOr<OpenedModel> OpenModelFiles(const std::string& path);

}  // namespace quire::files
