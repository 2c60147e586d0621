#pragma once

// Makes the tokenizer of an open model file: the only place that knows both files and vocabularies.

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "engine/tokenizer/chat_template.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/gguf_metadata.h"
#include "engine/weights/model_files.h"

namespace quire::engine {

// NotFound when the model carries none (a bare .safetensors file, a directory without
// tokenizer.json); InvalidArgument, naming the file, for one that is malformed or unsupported.
// The tokenizer keeps nothing of `model`.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const OpenedModel& model);

// Uses only a GGUF file's metadata; errors name the file and the key.
absl::StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizer(const GgufMetadata& gguf);

// A warning in words about a doubtful tokenizer; empty when there is none.
std::string TokenizerWarning(const OpenedModel& model);

// Reads tokenizer.chat_template of a GGUF file; else chat_template.jinja, or chat_template in
// tokenizer_config.json (of several, the one named "default"). Null when there is none.
absl::StatusOr<std::unique_ptr<ChatTemplate>> LoadChatTemplate(const OpenedModel& model,
                                                               const Tokenizer& tokenizer);

// The texts that a chat template calls bos_token and eos_token; empty where the model has none.
struct SpecialTokenTexts {
  std::string bos;
  std::string eos;
};
absl::StatusOr<SpecialTokenTexts> LoadSpecialTokenTexts(const OpenedModel& model,
                                                        const Tokenizer& tokenizer);

}  // namespace quire::engine
