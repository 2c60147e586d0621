#pragma once

// A Hugging Face directory's tokenizer, and the tokenizer that is read back from the GGUF values
// made of it.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "engine/convert/tokenizer_to_gguf.h"
#include "engine/frontend/tokenizer_loader.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/gguf_values.h"
#include "engine/weights/model_files.h"

namespace quire::engine::testing {

struct Converted {
  std::unique_ptr<Tokenizer> directory;
  std::unique_ptr<Tokenizer> gguf;
  GgufValues values;
  std::vector<std::string> warnings;
};

inline OpenedModel DirectoryOf(std::string tokenizer_json, nlohmann::json tokenizer_config = {}) {
  OpenedModel model{.path = "dir"};
  HfFiles& hf = model.hf.emplace();
  hf.tokenizer_json = std::move(tokenizer_json);
  hf.tokenizer_config = std::move(tokenizer_config);
  return model;
}

// With `vocab_size` rows; 0: as many as there are tokens. `name` is general.name.
inline absl::StatusOr<Converted> Convert(const OpenedModel& model, int64_t vocab_size = 0,
                                         const std::string& name = "") {
  Converted out;
  ASSIGN_OR_RETURN(out.directory, LoadTokenizer(model));
  if (vocab_size == 0) vocab_size = out.directory->vocab_size();
  if (!name.empty()) out.values.String("general.name", name);
  RETURN_IF_ERROR(TokenizerToGguf(model, vocab_size, out.values, out.warnings));
  ASSIGN_OR_RETURN(const GgufMetadata metadata, out.values.View("made.gguf"));
  ASSIGN_OR_RETURN(out.gguf, CreateTokenizer(metadata));
  return out;
}

}  // namespace quire::engine::testing
