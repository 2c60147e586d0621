#pragma once

// The special tokens that a tokenizer_config.json names, as transformers 5.24 reads them.

#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"

#include "text/tokenizer/tokenizer_json_models.h"

namespace quire::text {

// Adds to `added_tokens`, an array as in tokenizer.json, the tokens that `tokenizer_config` adds:
// those of added_tokens_decoder, which rule over the array's, and, as special tokens, those that
// NamedSpecialTokens returns and the list of further special tokens has. A named token whose text
// neither `pieces` nor the array has is left out, since no id of the model belongs to it. Returns
// InvalidArgument if added_tokens_decoder has an entry without an id or properties.
absl::Status AddConfiguredTokens(const nlohmann::json& tokenizer_config, const PieceList& pieces,
                                 nlohmann::json& added_tokens);

// Returns the text of the token that tokenizer_config.json names under `key` ("bos_token"); an
// empty string when there is none.
std::string SpecialTokenText(const nlohmann::json& tokenizer_config, std::string_view key);

// Returns the texts of all tokens that tokenizer_config.json names, by name: "bos_token",
// "eos_token" and every other key that ends in _token, and what the object extra_special_tokens
// has. A chat template sees them under their names. A name that is null or absent is left out.
std::map<std::string, std::string> NamedSpecialTokens(const nlohmann::json& tokenizer_config);

}  // namespace quire::text
