#pragma once

// Makes the tokenizer of an open model. No other code knows both model files and vocabularies.

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "files/gguf_metadata.h"
#include "files/model_files.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

// Makes the tokenizer of a model. The tokenizer keeps no reference to `model`. Returns NotFound
// when the model has no tokenizer (a bare .safetensors file, or a directory without
// tokenizer.json). Returns InvalidArgument, naming the file, when the tokenizer is malformed or
// unsupported.
absl::StatusOr<std::unique_ptr<text::Tokenizer>> LoadTokenizer(const files::OpenedModel& model);

// Makes a tokenizer from the metadata of a GGUF file. Errors name the file and the key.
absl::StatusOr<std::unique_ptr<text::Tokenizer>> CreateTokenizer(const files::GgufMetadata& gguf);

// Returns a warning if a GGUF file does not name the pre-tokenizer that its vocabulary needs, or
// has a token more than once. Returns an empty string otherwise.
std::string TokenizerWarning(const files::OpenedModel& model);

// Reads the chat template: tokenizer.chat_template of a GGUF file, else chat_template.jinja, else
// chat_template in tokenizer_config.json (of several templates, the one named "default"). Returns
// null when the model has no template.
absl::StatusOr<std::unique_ptr<text::ChatTemplate>> LoadChatTemplate(
    const files::OpenedModel& model, const text::Tokenizer& tokenizer);

// Returns the special tokens that a chat template sees: of a directory all that its
// tokenizer_config.json names, as in transformers, of a GGUF file bos_token and eos_token, as in
// llama.cpp.
absl::StatusOr<text::ChatTemplateVariables> LoadSpecialTokenTexts(const files::OpenedModel& model,
                                                                  const text::Tokenizer& tokenizer);

}  // namespace quire::engine
