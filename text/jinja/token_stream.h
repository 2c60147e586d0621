#pragma once

// The tokens of a template, and the position of the parser among these tokens.

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

#include "text/jinja/lexer.h"

namespace quire::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return current().line; }
  Token Next() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }

  bool Is(TokenType type) const { return current().type == type; }
  bool IsOperator(std::string_view op) const {
    return Is(TokenType::kOperator) && current().text == op;
  }
  bool IsName(std::string_view name) const {
    return Is(TokenType::kName) && current().text == name;
  }
  bool SkipOperator(std::string_view op) {
    const bool is = IsOperator(op);
    if (is) Next();
    return is;
  }
  bool SkipName(std::string_view name) {
    const bool is = IsName(name);
    if (is) Next();
    return is;
  }

  absl::Status Fail(std::string_view what) const { return Fail(line(), what); }
  static absl::Status Fail(int line, std::string_view what) {
    return absl::InvalidArgumentError(absl::StrFormat("line %d: %s", line, what));
  }
  absl::Status Unexpected(std::string_view wanted) const {
    return Fail(absl::StrFormat("expected %s, got '%s'", wanted, current().text));
  }
  absl::Status Expect(TokenType type, std::string_view what) {
    if (!Is(type)) return Unexpected(what);
    Next();
    return absl::OkStatus();
  }
  absl::Status ExpectOperator(std::string_view op) {
    return SkipOperator(op) ? absl::OkStatus() : Unexpected(absl::StrFormat("'%s'", op));
  }

 private:
  const std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace quire::jinja
