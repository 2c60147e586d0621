#pragma once

// Shared by the tokenizer tests: the files that make_goldens.py writes to testdata/, and the
// tokenizers that they name.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

#include "text/tokenizer/tokenizer.h"

namespace quire::text::testing {

// testdata/<name>, parsed; a test failure and null when it cannot be.
nlohmann::json ReadTestJson(std::string_view name);
nlohmann::json ParseFile(const std::string& path);

// From the text of a tokenizer.json alone; a test failure and null when it is refused.
std::unique_ptr<Tokenizer> TokenizerFromJson(const std::string& tokenizer_json);
// testdata/tiny_<name>.json
std::unique_ptr<Tokenizer> TinyTokenizer(std::string_view name);
extern const std::vector<std::string> kTinyNames;

std::vector<int32_t> IdsOf(const std::vector<EncodedToken>& tokens);
// "1 2 3"
std::string Joined(const std::vector<EncodedToken>& tokens);

// FNV-1a over the ids as little-endian words, in hex; make_goldens.py has the same.
std::string HashOf(const std::vector<int32_t>& ids);

}  // namespace quire::text::testing
