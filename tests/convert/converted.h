#pragma once

// Converts a Hugging Face directory's tokenizer to GGUF values, and reads a tokenizer back from
// them.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "convert/tokenizer_to_gguf.h"
#include "engine/frontend/tokenizer_loader.h"
#include "files/gguf_values.h"
#include "files/model_files.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::convert::testing {

struct Converted {
  std::unique_ptr<text::Tokenizer> directory;
  std::unique_ptr<text::Tokenizer> gguf;
  files::GgufValues values;
  std::vector<std::string> warnings;
};

inline files::OpenedModel DirectoryOf(std::string tokenizer_json,
                                      nlohmann::json tokenizer_config = {}) {
  files::OpenedModel model{.path = "dir"};
  files::HfFiles& hf = model.hf.emplace();
  hf.tokenizer_json = std::move(tokenizer_json);
  hf.tokenizer_config = std::move(tokenizer_config);
  return model;
}

// Converts the tokenizer of `model` for an embedding of `vocab_size` rows. If `vocab_size` is 0,
// the embedding has one row for each token. `name` is the value of general.name.
inline absl::StatusOr<Converted> Convert(const files::OpenedModel& model, int64_t vocab_size = 0,
                                         const std::string& name = "") {
  Converted out;
  ASSIGN_OR_RETURN(out.directory, engine::LoadTokenizer(model));
  if (vocab_size == 0) vocab_size = out.directory->vocab_size();
  if (!name.empty()) out.values.String("general.name", name);
  RETURN_IF_ERROR(TokenizerToGguf(model, vocab_size, out.values, out.warnings));
  ASSIGN_OR_RETURN(const files::GgufMetadata metadata, out.values.View("made.gguf"));
  ASSIGN_OR_RETURN(out.gguf, engine::CreateTokenizer(metadata));
  return out;
}

}  // namespace quire::convert::testing
