#pragma once

// Functions that the tokenizer tests share. They read the files that make_goldens.py writes to
// testdata/, and make tokenizers from these files.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

#include "text/tokenizer/tokenizer.h"

namespace quire::text::testing {

// Returns testdata/<name>, parsed. Fails the test and returns null if the file cannot be parsed.
nlohmann::json ReadTestJson(std::string_view name);
nlohmann::json ParseFile(const std::string& path);

// Returns a tokenizer made from the text of a tokenizer.json alone. Fails the test and returns null
// if the text is refused.
std::unique_ptr<Tokenizer> TokenizerFromJson(const std::string& tokenizer_json);
// Returns the tokenizer of testdata/tiny_<name>.json.
std::unique_ptr<Tokenizer> TinyTokenizer(std::string_view name);
extern const std::vector<std::string> kTinyNames;

// Returns the tokens of `text`. Fails the test and returns none if the tokenizer refuses the text.
std::vector<EncodedToken> Encoded(const Tokenizer& tokenizer, std::string_view text,
                                  const EncodeOptions& options = {});
std::vector<int32_t> IdsOf(const std::vector<EncodedToken>& tokens);
// Returns the ids with spaces between them, such as "1 2 3".
std::string Joined(const std::vector<EncodedToken>& tokens);

// Returns the FNV-1a hash of the ids as little-endian 32-bit words, in hex. make_goldens.py has the
// same function.
std::string HashOf(const std::vector<int32_t>& ids);

}  // namespace quire::text::testing
