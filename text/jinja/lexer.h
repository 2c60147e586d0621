#pragma once

// Splits template source into tokens, with Jinja2's white space rules for trim_blocks and
// lstrip_blocks.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quire::jinja {

enum class TokenType {
  kData,           // text between tags, already trimmed
  kVariableBegin,  // {{
  kVariableEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,  // escapes are resolved
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  std::string text;  // for kInteger and kFloat: the digits, without underscores
  int line = 1;
  int64_t integer = 0;
  double number = 0;
};

// Returns the tokens of `source`; the last token is kEnd. {% raw %} tags and comments are removed.
// The message of an InvalidArgument error begins with "line N: ".
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace quire::jinja
