#pragma once

// Reads a tokenizer.json into the form that GGUF has: tokens by id with their types, and merges or
// scores.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::convert {

struct HfVocabulary {
  bool byte_level = false;               // true: byte-level BPE; false: SentencePiece-BPE
  std::vector<std::string> tokens;       // by id, one for each row of the embedding
  std::vector<int32_t> token_types;      // values of GgufTokenType, by id
  std::vector<std::string> merges;       // byte-level: "left right", best first
  std::vector<float> scores;             // SentencePiece: by id; higher scores merge first
  int32_t unknown_id = -1;               // -1: none
  std::vector<text::AddedToken> added;   // added tokens with a row in the embedding
  std::vector<std::string> without_row;  // added tokens without a row in the embedding

  bool nfc = false;        // text is normalized to NFC first
  bool metaspace = false;  // the pre-tokenizers include Metaspace
};

// Reads the files from which `tokenizer` was created. `vocab_size` is the number of rows of the
// embedding. Returns InvalidArgument if the tokenizer has a property that GGUF or llama.cpp does
// not have.
absl::StatusOr<HfVocabulary> ReadHfVocabulary(std::string_view tokenizer_json,
                                              const nlohmann::json& tokenizer_config,
                                              const text::Tokenizer& tokenizer, int64_t vocab_size);

}  // namespace quire::convert
