#pragma once

// Opens the model at a path that a user gave: the tensors, and the data that describes the model.

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

// An opened model. `gguf` is set for a GGUF file, `hf` for a Hugging Face directory, and neither
// for a bare .safetensors file. The views in `gguf` are valid as long as `weights` lives.
struct OpenedModel {
  std::string path;  // the file or directory, as given
  // The last part of `path`, for display; NAME.gguf for the first of several parts
  std::string file_name;
  std::unique_ptr<WeightMap> weights;
  std::optional<GgufMetadata> gguf;
  std::optional<HfFiles> hf;
  uint32_t gguf_version = 0;

  // Returns the name of the file format: "GGUF" or "safetensors".
  std::string_view format() const { return gguf ? "GGUF" : "safetensors"; }
  // Returns the chat template: what replaces the model's, or the model's own, from the metadata of
  // a GGUF file, or from chat_template.jinja or tokenizer_config.json of a directory. Returns an
  // empty string when there is none, and InvalidArgument when the value in the file is not a
  // template.
  absl::StatusOr<std::string> ChatTemplate() const;
  // Takes the text of `file` instead of the model's own template. Errors name the file.
  absl::Status ReplaceChatTemplate(const std::string& file);

  // The text of chat_template.jinja, or of the file that replaces it; empty: neither
  std::string chat_template_jinja;
};

// Opens a .gguf file (of a model in parts, the first, with the others beside it), a .safetensors
// file, or a Hugging Face directory (config.json beside model.safetensors, or beside
// model.safetensors.index.json and its shards). From files with tensors, reads only the headers and
// the tensors that MappedWeights must copy. Errors name the file and the accepted forms.
absl::StatusOr<OpenedModel> OpenModelFiles(const std::string& path);

}  // namespace quire::files
