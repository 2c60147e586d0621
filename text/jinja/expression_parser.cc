#include "text/jinja/expression_parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "text/jinja/expression_nodes.h"

namespace quire::jinja {
absl::StatusOr<ExprPtr> ExpressionParser::Expression(bool with_conditional) {
  const Nesting nesting(*this);
  RETURN_IF_ERROR(nesting.status());
  ASSIGN_OR_RETURN(ExprPtr expr, Or());
  while (with_conditional && tokens_.IsName("if")) {
    const int line = tokens_.Next().line;
    ASSIGN_OR_RETURN(ExprPtr condition, Or());
    ExprPtr otherwise;
    if (tokens_.SkipName("else")) {
      ASSIGN_OR_RETURN(otherwise, Expression());
    }
    const int depth = std::max({DepthOf(expr), DepthOf(condition), DepthOf(otherwise)});
    ASSIGN_OR_RETURN(
        expr, Make(line, depth,
                   ConditionalExpr{std::move(condition), std::move(expr), std::move(otherwise)}));
  }
  return expr;
}

template <typename Operand>
absl::StatusOr<ExprPtr> ExpressionParser::LeftToRight(
    Operand operand, const std::vector<std::pair<std::string_view, BinaryOp>>& ops,
    TokenType type) {
  ASSIGN_OR_RETURN(ExprPtr left, operand());
  while (true) {
    const auto op = std::find_if(ops.begin(), ops.end(), [&](const auto& entry) {
      return tokens_.Is(type) && tokens_.current().text == entry.first;
    });
    if (op == ops.end()) return left;
    const int line = tokens_.Next().line;
    ASSIGN_OR_RETURN(ExprPtr right, operand());
    const int depth = std::max(DepthOf(left), DepthOf(right));
    ASSIGN_OR_RETURN(left,
                     Make(line, depth, BinaryExpr{op->second, std::move(left), std::move(right)}));
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::Or() {
  return LeftToRight([this] { return And(); }, {{"or", BinaryOp::kOr}}, TokenType::kName);
}

absl::StatusOr<ExprPtr> ExpressionParser::And() {
  return LeftToRight([this] { return Not(); }, {{"and", BinaryOp::kAnd}}, TokenType::kName);
}

absl::StatusOr<ExprPtr> ExpressionParser::Not() {
  if (!tokens_.IsName("not")) return Compare();
  const Nesting nesting(*this);
  RETURN_IF_ERROR(nesting.status());
  const int line = tokens_.Next().line;
  ASSIGN_OR_RETURN(ExprPtr operand, Not());
  const int depth = DepthOf(operand);
  return Make(line, depth, UnaryExpr{UnaryOp::kNot, std::move(operand)});
}

absl::StatusOr<ExprPtr> ExpressionParser::Compare() {
  static constexpr std::pair<std::string_view, CompareOp> kOps[] = {
      {"==", CompareOp::kEqual},  {"!=", CompareOp::kNotEqual},
      {"<", CompareOp::kLess},    {"<=", CompareOp::kLessEqual},
      {">", CompareOp::kGreater}, {">=", CompareOp::kGreaterEqual}};
  const int line = tokens_.line();
  ASSIGN_OR_RETURN(ExprPtr first, Sum());
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
  int depth = DepthOf(first);
  while (true) {
    const auto* op = std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& entry) {
      return tokens_.IsOperator(entry.first);
    });
    CompareOp compare = CompareOp::kIn;
    if (op != std::end(kOps)) {
      tokens_.Next();
      compare = op->second;
    } else if (tokens_.IsName("not") && tokens_.look().type == TokenType::kName &&
               tokens_.look().text == "in") {
      tokens_.Next();
      tokens_.Next();
      compare = CompareOp::kNotIn;
    } else if (!tokens_.SkipName("in")) {
      break;
    }
    ASSIGN_OR_RETURN(ExprPtr operand, Sum());
    depth = std::max(depth, DepthOf(operand));
    rest.emplace_back(compare, std::move(operand));
  }
  if (rest.empty()) return first;
  return Make(line, depth, CompareExpr{std::move(first), std::move(rest)});
}

absl::StatusOr<ExprPtr> ExpressionParser::Sum() {
  return LeftToRight([this] { return Concat(); },
                     {{"+", BinaryOp::kAdd}, {"-", BinaryOp::kSubtract}}, TokenType::kOperator);
}

absl::StatusOr<ExprPtr> ExpressionParser::Concat() {
  const int line = tokens_.line();
  std::vector<ExprPtr> parts;
  do {
    ASSIGN_OR_RETURN(ExprPtr part, Product());
    parts.push_back(std::move(part));
  } while (tokens_.SkipOperator("~"));
  if (parts.size() == 1) return std::move(parts[0]);
  const int depth = DepthOf(parts);
  return Make(line, depth, ConcatExpr{std::move(parts)});
}

absl::StatusOr<ExprPtr> ExpressionParser::Product() {
  return LeftToRight([this] { return Power(); },
                     {{"*", BinaryOp::kMultiply},
                      {"/", BinaryOp::kDivide},
                      {"//", BinaryOp::kFloorDivide},
                      {"%", BinaryOp::kModulo}},
                     TokenType::kOperator);
}

absl::StatusOr<ExprPtr> ExpressionParser::Power() {
  return LeftToRight([this] { return Unary(); }, {{"**", BinaryOp::kPower}}, TokenType::kOperator);
}

absl::StatusOr<ExprPtr> ExpressionParser::Unary(bool with_filter) {
  ExprPtr expr;
  if (tokens_.IsOperator("-") || tokens_.IsOperator("+")) {
    const Nesting nesting(*this);
    RETURN_IF_ERROR(nesting.status());
    const Token sign = tokens_.Next();
    ASSIGN_OR_RETURN(ExprPtr operand, Unary(false));
    const int depth = DepthOf(operand);
    const UnaryOp op = sign.text == "-" ? UnaryOp::kNegate : UnaryOp::kPlus;
    ASSIGN_OR_RETURN(expr, Make(sign.line, depth, UnaryExpr{op, std::move(operand)}));
  } else {
    ASSIGN_OR_RETURN(expr, Primary());
  }
  ASSIGN_OR_RETURN(expr, Postfix(std::move(expr)));
  if (!with_filter) return expr;
  return FiltersAndTests(std::move(expr));
}

absl::StatusOr<ExprPtr> ExpressionParser::Primary() {
  const int line = tokens_.line();
  if (tokens_.IsOperator("[")) return ListLiteral();
  if (tokens_.IsOperator("{")) return DictLiteral();
  if (tokens_.SkipOperator("(")) {
    ASSIGN_OR_RETURN(ExprPtr inner, Tuple(true, /*in_parentheses=*/true));
    RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
    return inner;
  }
  switch (tokens_.current().type) {
    case TokenType::kName: {
      const std::string name = tokens_.Next().text;
      if (name == "true" || name == "True") return Make(line, 0, ConstantExpr{Value::Bool(true)});
      if (name == "false" || name == "False")
        return Make(line, 0, ConstantExpr{Value::Bool(false)});
      if (name == "none" || name == "None") return Make(line, 0, ConstantExpr{Value::MakeNone()});
      NoteSpecialName(name);
      return Make(line, 0, NameExpr{name});
    }
    case TokenType::kString: {
      std::string text;
      while (tokens_.Is(TokenType::kString)) text += tokens_.Next().text;
      return Make(line, 0, ConstantExpr{Value::String(std::move(text))});
    }
    case TokenType::kInteger:
      return Make(line, 0, ConstantExpr{Value::Int(tokens_.Next().integer)});
    case TokenType::kFloat:
      return Make(line, 0, ConstantExpr{Value::Float(tokens_.Next().number)});
    default:
      return tokens_.Unexpected("an expression");
  }
}

void ExpressionParser::NoteSpecialName(const std::string& name) {
  for (MacroNode* macro : open_macros) {
    macro->uses_caller = macro->uses_caller || name == "caller";
    macro->uses_varargs = macro->uses_varargs || name == "varargs";
    macro->uses_kwargs = macro->uses_kwargs || name == "kwargs";
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::Tuple(bool with_conditional, bool in_parentheses) {
  const int line = tokens_.line();
  const auto at_end = [this] {
    return tokens_.Is(TokenType::kVariableEnd) || tokens_.Is(TokenType::kBlockEnd) ||
           tokens_.IsOperator(")");
  };
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (!at_end()) {
    ASSIGN_OR_RETURN(ExprPtr item, Expression(with_conditional));
    items.push_back(std::move(item));
    if (!tokens_.SkipOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (items.size() == 1) return std::move(items[0]);
    if (!in_parentheses) return tokens_.Unexpected("an expression");
  }
  const int depth = DepthOf(items);
  return Make(line, depth, SequenceExpr{SequenceType::kTuple, std::move(items)});
}

absl::StatusOr<ExprPtr> ExpressionParser::ListLiteral() {
  const int line = tokens_.Next().line;
  std::vector<ExprPtr> items;
  while (!tokens_.IsOperator("]")) {
    if (!items.empty()) RETURN_IF_ERROR(tokens_.ExpectOperator(","));
    if (tokens_.IsOperator("]")) break;
    ASSIGN_OR_RETURN(ExprPtr item, Expression());
    items.push_back(std::move(item));
  }
  tokens_.Next();
  const int depth = DepthOf(items);
  return Make(line, depth, SequenceExpr{SequenceType::kList, std::move(items)});
}

absl::StatusOr<ExprPtr> ExpressionParser::DictLiteral() {
  const int line = tokens_.Next().line;
  std::vector<std::pair<ExprPtr, ExprPtr>> entries;
  int depth = 0;
  while (!tokens_.IsOperator("}")) {
    if (!entries.empty()) RETURN_IF_ERROR(tokens_.ExpectOperator(","));
    if (tokens_.IsOperator("}")) break;
    ASSIGN_OR_RETURN(ExprPtr key, Expression());
    RETURN_IF_ERROR(tokens_.ExpectOperator(":"));
    ASSIGN_OR_RETURN(ExprPtr value, Expression());
    depth = std::max({depth, DepthOf(key), DepthOf(value)});
    entries.emplace_back(std::move(key), std::move(value));
  }
  tokens_.Next();
  return Make(line, depth, DictExpr{std::move(entries)});
}

absl::StatusOr<std::string> ExpressionParser::TargetName() {
  if (!tokens_.Is(TokenType::kName)) return tokens_.Unexpected("a name");
  const Token name = tokens_.Next();
  for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
    if (name.text == constant)
      return TokenStream::Fail(name.line, absl::StrCat("cannot assign to '", name.text, "'"));
  }
  return name.text;
}

absl::StatusOr<Target> ExpressionParser::AssignTarget(bool with_namespace) {
  if (with_namespace && tokens_.look().type == TokenType::kOperator && tokens_.look().text == ".") {
    ASSIGN_OR_RETURN(std::string name, TargetName());
    tokens_.Next();
    if (!tokens_.Is(TokenType::kName)) return tokens_.Unexpected("a name");
    return Target{.kind = Target::Kind::kAttribute,
                  .name = std::move(name),
                  .attribute = tokens_.Next().text};
  }
  // Accepts names and tuples of names; a tuple needs no parentheses and may end in a comma.
  const int line = tokens_.line();
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (!tokens_.Is(TokenType::kBlockEnd)) {
    ASSIGN_OR_RETURN(ExprPtr item, Primary());
    items.push_back(std::move(item));
    if (!tokens_.SkipOperator(",")) break;
    is_tuple = true;
  }
  if (items.empty()) return TokenStream::Fail(line, "expected a name to assign to");
  if (!is_tuple) return ToTarget(std::move(items[0]));
  const int depth = DepthOf(items);
  ASSIGN_OR_RETURN(ExprPtr tuple,
                   Make(line, depth, SequenceExpr{SequenceType::kTuple, std::move(items)}));
  return ToTarget(std::move(tuple));
}

absl::StatusOr<Target> ExpressionParser::ToTarget(ExprPtr expr) {
  if (auto* name = std::get_if<NameExpr>(&expr->node)) return Target{.name = std::move(name->name)};
  auto* tuple = std::get_if<SequenceExpr>(&expr->node);
  if (tuple == nullptr || tuple->type != SequenceType::kTuple) {
    return TokenStream::Fail(expr->line, "cannot assign to this");
  }
  Target target{.kind = Target::Kind::kTuple};
  for (ExprPtr& item : tuple->items) {
    ASSIGN_OR_RETURN(Target part, ToTarget(std::move(item)));
    target.parts.push_back(std::move(part));
  }
  return target;
}

}  // namespace quire::jinja
