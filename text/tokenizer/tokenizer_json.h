#pragma once

// The tokenizer of a Hugging Face directory.

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

#include "text/tokenizer/tokenizer.h"

namespace quire::text {

// tokenizer.json as text, and the files beside it, parsed; absent files are null.
struct HfTokenizerFiles {
  std::string_view tokenizer_json;
  const nlohmann::json& config;
  const nlohmann::json& generation_config;
  const nlohmann::json& tokenizer_config;
};

// A BPE or Unigram model with the normalizers, pre-tokenizers, post-processors and decoders that
// decoder-only families use. InvalidArgument names the malformed or unsupported part.
absl::StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizer(const HfTokenizerFiles& files);

// A token that tokenizer_config.json names under `key` ("bos_token"); empty when it names none.
std::string SpecialTokenText(const nlohmann::json& tokenizer_config, std::string_view key);

}  // namespace quire::text
