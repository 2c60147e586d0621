// Parses the suffixes of an operand: .name, [index], (arguments), | filter, is test.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "text/jinja/expression_nodes.h"
#include "text/jinja/expression_parser.h"

namespace quire::jinja {

absl::StatusOr<ExprPtr> ExpressionParser::Postfix(ExprPtr object) {
  while (true) {
    if (tokens_.IsOperator(".") || tokens_.IsOperator("[")) {
      ASSIGN_OR_RETURN(object, Subscript(std::move(object)));
    } else if (tokens_.IsOperator("(")) {
      ASSIGN_OR_RETURN(object, Call(std::move(object)));
    } else {
      return object;
    }
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::FiltersAndTests(ExprPtr input) {
  while (true) {
    if (tokens_.SkipOperator("|")) {
      ASSIGN_OR_RETURN(input, OneFilter(std::move(input)));
    } else if (tokens_.IsName("is")) {
      ASSIGN_OR_RETURN(input, TestOf(std::move(input)));
    } else if (tokens_.IsOperator("(")) {
      ASSIGN_OR_RETURN(input, Call(std::move(input)));
    } else {
      return input;
    }
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::Subscript(ExprPtr object) {
  const Token open = tokens_.Next();
  int depth = DepthOf(object);
  if (open.text == ".") {
    const Token name = tokens_.Next();
    if (name.type == TokenType::kName) {
      return Make(open.line, depth, AttributeExpr{std::move(object), name.text});
    }
    if (name.type != TokenType::kInteger)
      return TokenStream::Fail(name.line, "expected name or number");
    ASSIGN_OR_RETURN(ExprPtr index, Make(name.line, 0, ConstantExpr{Value::Int(name.integer)}));
    return Make(open.line, depth, SubscriptExpr{std::move(object), std::move(index)});
  }
  // Parses [a], [a, b] (a tuple), or [a:b:c].
  std::vector<ExprPtr> parts;  // the begin, end and step of a slice
  bool is_slice = false;
  const auto part_ends = [this] {
    return tokens_.IsOperator(":") || tokens_.IsOperator("]") || tokens_.IsOperator(",");
  };
  ExprPtr index;
  if (!tokens_.IsOperator(":")) {
    ASSIGN_OR_RETURN(index, Expression());
  }
  parts.push_back(std::move(index));
  while (parts.size() < 3 && tokens_.SkipOperator(":")) {
    is_slice = true;
    ExprPtr part;
    if (!part_ends()) {
      ASSIGN_OR_RETURN(part, Expression());
    }
    parts.push_back(std::move(part));
  }
  if (is_slice) {
    if (tokens_.IsOperator(","))
      return tokens_.Fail("a slice in a tuple subscript is not supported");
    RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
    parts.resize(3);
    depth = std::max(depth, DepthOf(parts));
    return Make(open.line, depth,
                SliceExpr{std::move(object), std::move(parts[0]), std::move(parts[1]),
                          std::move(parts[2])});
  }
  while (!tokens_.IsOperator("]")) {
    RETURN_IF_ERROR(tokens_.ExpectOperator(","));
    ASSIGN_OR_RETURN(ExprPtr item, Expression());
    parts.push_back(std::move(item));
  }
  tokens_.Next();
  index = std::move(parts[0]);
  if (parts.size() > 1) {
    parts[0] = std::move(index);
    const int depth_of_parts = DepthOf(parts);
    ASSIGN_OR_RETURN(index, Make(open.line, depth_of_parts,
                                 SequenceExpr{SequenceType::kTuple, std::move(parts)}));
  }
  depth = std::max(depth, DepthOf(index));
  return Make(open.line, depth, SubscriptExpr{std::move(object), std::move(index)});
}

absl::StatusOr<std::string> ExpressionParser::DottedName() {
  if (!tokens_.Is(TokenType::kName)) return tokens_.Unexpected("a name");
  std::string name = tokens_.Next().text;
  while (tokens_.SkipOperator(".")) {
    if (!tokens_.Is(TokenType::kName)) return tokens_.Unexpected("a name");
    absl::StrAppend(&name, ".", tokens_.Next().text);
  }
  return name;
}

absl::StatusOr<ExprPtr> ExpressionParser::OneFilter(ExprPtr input) {
  const int line = tokens_.line();
  ASSIGN_OR_RETURN(std::string name, DottedName());
  Arguments arguments;
  if (tokens_.IsOperator("(")) {
    ASSIGN_OR_RETURN(arguments, CallArguments());
  }
  const int depth = std::max(DepthOf(input), DepthOf(arguments));
  return Make(line, depth, FilterExpr{std::move(input), std::move(name), std::move(arguments)});
}

absl::StatusOr<ExprPtr> ExpressionParser::FilterChain(ExprPtr input) {
  do {
    ASSIGN_OR_RETURN(input, OneFilter(std::move(input)));
  } while (tokens_.SkipOperator("|"));
  return input;
}

absl::StatusOr<ExprPtr> ExpressionParser::TestOf(ExprPtr input) {
  const int line = tokens_.Next().line;
  const bool negated = tokens_.SkipName("not");
  ASSIGN_OR_RETURN(std::string name, DottedName());
  Arguments arguments;
  const bool starts_operand = tokens_.Is(TokenType::kName) || tokens_.Is(TokenType::kString) ||
                              tokens_.Is(TokenType::kInteger) || tokens_.Is(TokenType::kFloat) ||
                              tokens_.IsOperator("[") || tokens_.IsOperator("{");
  if (tokens_.IsOperator("(")) {
    ASSIGN_OR_RETURN(arguments, CallArguments());
  } else if (starts_operand && !tokens_.IsName("else") && !tokens_.IsName("or") &&
             !tokens_.IsName("and")) {
    if (tokens_.IsName("is")) return tokens_.Fail("tests cannot be chained with 'is'");
    ASSIGN_OR_RETURN(ExprPtr operand, Primary());
    ASSIGN_OR_RETURN(operand, Postfix(std::move(operand)));
    arguments.positional.push_back(std::move(operand));
  }
  int depth = std::max(DepthOf(input), DepthOf(arguments));
  ASSIGN_OR_RETURN(
      ExprPtr test,
      Make(line, depth, TestExpr{std::move(input), std::move(name), std::move(arguments)}));
  if (!negated) return test;
  depth = DepthOf(test);
  return Make(line, depth, UnaryExpr{UnaryOp::kNot, std::move(test)});
}

absl::StatusOr<ExprPtr> ExpressionParser::Call(ExprPtr function) {
  const int line = tokens_.line();
  ASSIGN_OR_RETURN(Arguments arguments, CallArguments());
  const int depth = std::max(DepthOf(function), DepthOf(arguments));
  return Make(line, depth, CallExpr{std::move(function), std::move(arguments)});
}

absl::StatusOr<Arguments> ExpressionParser::CallArguments() {
  const int line = tokens_.line();
  RETURN_IF_ERROR(tokens_.ExpectOperator("("));
  Arguments arguments;
  bool need_comma = false;
  while (!tokens_.IsOperator(")")) {
    if (need_comma) {
      RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.IsOperator(")")) break;
    }
    need_comma = true;
    const bool is_keyword = tokens_.Is(TokenType::kName) &&
                            tokens_.look().type == TokenType::kOperator &&
                            tokens_.look().text == "=";
    bool in_order = arguments.star_star == nullptr;
    if (tokens_.SkipOperator("*")) {
      in_order = in_order && arguments.star == nullptr;
      ASSIGN_OR_RETURN(arguments.star, Expression());
    } else if (tokens_.SkipOperator("**")) {
      ASSIGN_OR_RETURN(arguments.star_star, Expression());
    } else if (is_keyword) {
      const std::string name = tokens_.Next().text;
      tokens_.Next();
      ASSIGN_OR_RETURN(ExprPtr value, Expression());
      for (const auto& [other, unused] : arguments.keyword) in_order = in_order && other != name;
      arguments.keyword.emplace_back(name, std::move(value));
    } else {
      in_order = in_order && arguments.star == nullptr && arguments.keyword.empty();
      ASSIGN_OR_RETURN(ExprPtr value, Expression());
      arguments.positional.push_back(std::move(value));
    }
    if (!in_order) return TokenStream::Fail(line, "invalid syntax for function call expression");
  }
  tokens_.Next();
  return arguments;
}

}  // namespace quire::jinja
