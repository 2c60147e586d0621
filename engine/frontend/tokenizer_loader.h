#pragma once

// Makes the tokenizer of an open model file: the only place that knows both files and vocabularies.

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "files/gguf_metadata.h"
#include "files/model_files.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

// NotFound when the model carries none (a bare .safetensors file, a directory without
// tokenizer.json); InvalidArgument, naming the file, for one that is malformed or unsupported.
// The tokenizer keeps nothing of `model`.
absl::StatusOr<std::unique_ptr<text::Tokenizer>> LoadTokenizer(const files::OpenedModel& model);

// Uses only a GGUF file's metadata; errors name the file and the key.
absl::StatusOr<std::unique_ptr<text::Tokenizer>> CreateTokenizer(const files::GgufMetadata& gguf);

// A warning in words about a doubtful tokenizer; empty when there is none.
std::string TokenizerWarning(const files::OpenedModel& model);

// Reads tokenizer.chat_template of a GGUF file; else chat_template.jinja, or chat_template in
// tokenizer_config.json (of several, the one named "default"). Null when there is none.
absl::StatusOr<std::unique_ptr<text::ChatTemplate>> LoadChatTemplate(
    const files::OpenedModel& model, const text::Tokenizer& tokenizer);

// The texts that a chat template calls bos_token and eos_token; empty where the model has none.
struct SpecialTokenTexts {
  std::string bos;
  std::string eos;
};
absl::StatusOr<SpecialTokenTexts> LoadSpecialTokenTexts(const files::OpenedModel& model,
                                                        const text::Tokenizer& tokenizer);

}  // namespace quire::engine
