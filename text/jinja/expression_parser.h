#pragma once

// Parses tokens into expressions, with Jinja2's precedence.

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "text/jinja/ast.h"
#include "text/jinja/token_stream.h"

namespace quire::jinja {

// The limits of nesting. Source that nests deeper is refused, so that no recursion over the tree
// can overflow the stack.
inline constexpr int kMaxParseDepth = 100;
inline constexpr int kMaxExprDepth = 400;

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  absl::StatusOr<ExprPtr> Expression(bool with_conditional = true);
  // Parses one expression, or a tuple without parentheses: "a, b".
  absl::StatusOr<ExprPtr> Tuple(bool with_conditional, bool in_parentheses = false);
  // Parses a chain of filters: "name(arguments) | name ...". The first filter is applied to
  // `input`, which may be null. The current token must be the first name.
  absl::StatusOr<ExprPtr> FilterChain(ExprPtr input);
  absl::StatusOr<Target> AssignTarget(bool with_namespace);
  absl::StatusOr<std::string> TargetName();

  // The macros whose bodies are being parsed. Each macro records which of the names caller, varargs
  // and kwargs its body uses.
  std::vector<MacroNode*> open_macros;

  // Counts one level of nesting while the object lives.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser) : parser_(parser) { ++parser_.depth_; }
    ~Nesting() { --parser_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    absl::Status status() const {
      if (parser_.depth_ <= kMaxParseDepth) return absl::OkStatus();
      return parser_.tokens_.Fail("the template nests too deep");
    }

   private:
    ExpressionParser& parser_;
  };

 private:
  absl::StatusOr<ExprPtr> Or();
  absl::StatusOr<ExprPtr> And();
  absl::StatusOr<ExprPtr> Not();
  absl::StatusOr<ExprPtr> Compare();
  absl::StatusOr<ExprPtr> Sum();
  absl::StatusOr<ExprPtr> Concat();
  absl::StatusOr<ExprPtr> Product();
  absl::StatusOr<ExprPtr> Power();
  absl::StatusOr<ExprPtr> Unary(bool with_filter = true);
  absl::StatusOr<ExprPtr> Primary();
  absl::StatusOr<ExprPtr> ListLiteral();
  absl::StatusOr<ExprPtr> DictLiteral();
  absl::StatusOr<ExprPtr> Postfix(ExprPtr object);
  absl::StatusOr<ExprPtr> FiltersAndTests(ExprPtr input);
  absl::StatusOr<ExprPtr> Subscript(ExprPtr object);
  absl::StatusOr<ExprPtr> OneFilter(ExprPtr input);
  absl::StatusOr<ExprPtr> TestOf(ExprPtr input);
  absl::StatusOr<ExprPtr> Call(ExprPtr function);
  absl::StatusOr<Arguments> CallArguments();
  absl::StatusOr<std::string> DottedName();
  absl::StatusOr<Target> ToTarget(ExprPtr expr);
  void NoteSpecialName(const std::string& name);

  // Parses a chain of left-associative binary operators: operand (op operand)*.
  template <typename Operand>
  absl::StatusOr<ExprPtr> LeftToRight(Operand operand,
                                      const std::vector<std::pair<std::string_view, BinaryOp>>& ops,
                                      TokenType type);

  TokenStream& tokens_;
  int depth_ = 0;
};

}  // namespace quire::jinja
