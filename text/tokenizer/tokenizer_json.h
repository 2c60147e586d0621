#pragma once

// Creates the tokenizer of a Hugging Face directory.

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

#include "text/tokenizer/tokenizer.h"

namespace quire::text {

// The content of tokenizer.json as text, and the parsed content of config.json,
// generation_config.json and tokenizer_config.json. The JSON of an absent file is null.
struct HfTokenizerFiles {
  std::string_view tokenizer_json;
  const nlohmann::json& config;
  const nlohmann::json& generation_config;
  const nlohmann::json& tokenizer_config;
};

// Creates a tokenizer with a BPE or Unigram model. Supported are the normalizers, pre-tokenizers,
// post-processors and decoders that decoder-only families use. Returns an InvalidArgument error
// that names the part that is malformed or unsupported.
absl::StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizer(const HfTokenizerFiles& files);

}  // namespace quire::text
