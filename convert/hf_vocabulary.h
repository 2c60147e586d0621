#pragma once

// The content of a tokenizer.json in the terms of GGUF: tokens by id with their types, merges or
// scores.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::convert {

struct HfVocabulary {
  bool byte_level = false;               // else SentencePiece-BPE
  std::vector<std::string> tokens;       // by id, one for each row of the embedding
  std::vector<int32_t> token_types;      // GgufTokenType
  std::vector<std::string> merges;       // byte-level: "left right", best first
  std::vector<float> scores;             // SentencePiece: of each token, higher merges first
  int32_t unknown_id = -1;               // -1: none
  std::vector<text::AddedToken> added;   // added tokens with a row
  std::vector<std::string> without_row;  // added tokens without a row

  bool nfc = false;        // text is normalized to NFC first
  bool metaspace = false;  // a pre-tokenizer adds the marker in front of a text
};

// `tokenizer` was read from the same file. InvalidArgument for properties that GGUF, or llama.cpp,
// lacks.
absl::StatusOr<HfVocabulary> ReadHfVocabulary(std::string_view tokenizer_json,
                                              const text::Tokenizer& tokenizer, int64_t vocab_size);

}  // namespace quire::convert
