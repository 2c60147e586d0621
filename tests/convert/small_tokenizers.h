#pragma once

// The tokenizer.json of small tokenizers in which differences show.

#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace quire::convert::testing {

// Bytes, every pair of the characters that splits differ in, runs of three of some, "aa bb" as a
// token that no merge makes, and two added tokens at the end.
nlohmann::json ByteLevelJson();

// A pre_tokenizer of these patterns, one after the other, on bytes.
nlohmann::json SplitsOf(const std::vector<std::string_view>& patterns);

// Bytes as SentencePiece has them, letters, and words merged of them.
nlohmann::json SentencePieceJson();

}  // namespace quire::convert::testing
