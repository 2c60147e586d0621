#pragma once

// Makes the tokenizer.json of small tokenizers that show differences between conversions.

#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace quire::convert::testing {

// Returns a byte-level tokenizer.json. Its tokens are the bytes, all pairs from a set of letters,
// digits, punctuation and white space, runs of three equal characters, "stab", and two added tokens
// at the end. No merge makes "stab".
nlohmann::json ByteLevelJson();

// Returns a pre_tokenizer that splits by each pattern in turn, then maps to bytes.
nlohmann::json SplitsOf(const std::vector<std::string_view>& patterns);

// Returns a SentencePiece tokenizer.json. Its tokens are byte tokens, letters, and words that
// merges make of the letters.
nlohmann::json SentencePieceJson();

}  // namespace quire::convert::testing
