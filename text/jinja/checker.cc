#include "text/jinja/checker.h"

#include <variant>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "text/jinja/attributes.h"
#include "text/jinja/filters.h"
#include "text/jinja/predicates.h"

namespace quire::jinja {
namespace {

absl::Status Lacks(int line, std::string_view what, std::string_view name) {
  return absl::InvalidArgumentError(
      absl::StrFormat("line %d: the %s '%s' is not supported", line, what, name));
}

// Visits every expression of a tree, and binds the filters and tests in it.
class Checker {
 public:
  absl::Status Visit(Body& body) {
    for (std::unique_ptr<Node>& node : body) {
      RETURN_IF_ERROR(std::visit([this](auto& n) { return VisitNode(n); }, node->node));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Visit(ExprPtr& expr) {
    if (expr == nullptr) return absl::OkStatus();
    line_ = expr->line;
    return std::visit([this](auto& e) { return VisitExpr(e); }, expr->node);
  }
  absl::Status Visit(std::vector<ExprPtr>& exprs) {
    for (ExprPtr& expr : exprs) RETURN_IF_ERROR(Visit(expr));
    return absl::OkStatus();
  }
  absl::Status Visit(Arguments& arguments) {
    RETURN_IF_ERROR(Visit(arguments.positional));
    for (auto& [name, value] : arguments.keyword) RETURN_IF_ERROR(Visit(value));
    RETURN_IF_ERROR(Visit(arguments.star));
    return Visit(arguments.star_star);
  }

  absl::Status VisitExpr(ConstantExpr&) { return absl::OkStatus(); }
  absl::Status VisitExpr(NameExpr&) { return absl::OkStatus(); }
  absl::Status VisitExpr(SequenceExpr& e) { return Visit(e.items); }
  absl::Status VisitExpr(DictExpr& e) {
    for (auto& [key, value] : e.entries) {
      RETURN_IF_ERROR(Visit(key));
      RETURN_IF_ERROR(Visit(value));
    }
    return absl::OkStatus();
  }
  absl::Status VisitExpr(UnaryExpr& e) { return Visit(e.operand); }
  absl::Status VisitExpr(BinaryExpr& e) {
    RETURN_IF_ERROR(Visit(e.left));
    return Visit(e.right);
  }
  absl::Status VisitExpr(ConcatExpr& e) { return Visit(e.parts); }
  absl::Status VisitExpr(CompareExpr& e) {
    RETURN_IF_ERROR(Visit(e.first));
    for (auto& [op, operand] : e.rest) RETURN_IF_ERROR(Visit(operand));
    return absl::OkStatus();
  }
  absl::Status VisitExpr(ConditionalExpr& e) {
    RETURN_IF_ERROR(Visit(e.condition));
    RETURN_IF_ERROR(Visit(e.then));
    return Visit(e.otherwise);
  }
  absl::Status VisitExpr(AttributeExpr& e) { return Visit(e.object); }
  absl::Status VisitExpr(SubscriptExpr& e) {
    RETURN_IF_ERROR(Visit(e.object));
    return Visit(e.index);
  }
  absl::Status VisitExpr(SliceExpr& e) {
    for (ExprPtr* part : {&e.object, &e.begin, &e.end, &e.step}) RETURN_IF_ERROR(Visit(*part));
    return absl::OkStatus();
  }

  absl::Status VisitExpr(CallExpr& e) {
    if (const auto* method = std::get_if<AttributeExpr>(&e.function->node)) {
      if (!IsKnownMethod(method->name)) return Lacks(e.function->line, "method", method->name);
    }
    if (const auto* name = std::get_if<NameExpr>(&e.function->node);
        name != nullptr && name->name == "lipsum") {
      return Lacks(e.function->line, "function", name->name);
    }
    RETURN_IF_ERROR(Visit(e.function));
    return Visit(e.arguments);
  }

  absl::Status VisitExpr(FilterExpr& e) {
    e.filter = FindFilter(e.name);
    if (e.filter == nullptr) return Lacks(line_, "filter", e.name);
    const bool by_attribute = e.name == "selectattr" || e.name == "rejectattr";
    const std::string* name = ConstantArgument(e.arguments, by_attribute ? 1 : 0);
    if (e.name == "map" && name != nullptr && FindFilter(*name) == nullptr)
      return Lacks(line_, "filter", *name);
    const bool takes_test = by_attribute || e.name == "select" || e.name == "reject";
    if (takes_test && name != nullptr && FindTest(*name) == nullptr)
      return Lacks(line_, "test", *name);
    RETURN_IF_ERROR(Visit(e.input));
    return Visit(e.arguments);
  }
  absl::Status VisitExpr(TestExpr& e) {
    e.test = FindTest(e.name);
    if (e.test == nullptr) return Lacks(line_, "test", e.name);
    RETURN_IF_ERROR(Visit(e.input));
    return Visit(e.arguments);
  }

  // Returns the text of the positional argument `at`; null unless it is a literal string.
  static const std::string* ConstantArgument(const Arguments& arguments, size_t at) {
    if (at >= arguments.positional.size()) return nullptr;
    const auto* constant = std::get_if<ConstantExpr>(&arguments.positional[at]->node);
    return constant != nullptr && constant->value.is_string() ? &constant->value.str() : nullptr;
  }

  absl::Status VisitNode(TextNode&) { return absl::OkStatus(); }
  absl::Status VisitNode(BreakNode&) { return absl::OkStatus(); }
  absl::Status VisitNode(ContinueNode&) { return absl::OkStatus(); }
  absl::Status VisitNode(OutputNode& n) { return Visit(n.value); }
  absl::Status VisitNode(IfNode& n) {
    for (auto& [condition, body] : n.branches) {
      RETURN_IF_ERROR(Visit(condition));
      RETURN_IF_ERROR(Visit(body));
    }
    return Visit(n.otherwise);
  }
  absl::Status VisitNode(ForNode& n) {
    RETURN_IF_ERROR(Visit(n.iterable));
    RETURN_IF_ERROR(Visit(n.condition));
    RETURN_IF_ERROR(Visit(n.body));
    return Visit(n.otherwise);
  }
  absl::Status VisitNode(SetNode& n) { return Visit(n.value); }
  absl::Status VisitNode(SetBlockNode& n) {
    RETURN_IF_ERROR(Visit(n.filter));
    return Visit(n.body);
  }
  absl::Status VisitNode(MacroNode& n) {
    for (Parameter& parameter : n.parameters) RETURN_IF_ERROR(Visit(parameter.default_value));
    return Visit(n.body);
  }
  absl::Status VisitNode(CallBlockNode& n) {
    RETURN_IF_ERROR(Visit(n.call));
    return VisitNode(n.caller);
  }
  absl::Status VisitNode(FilterBlockNode& n) {
    RETURN_IF_ERROR(Visit(n.filter));
    return Visit(n.body);
  }
  absl::Status VisitNode(WithNode& n) {
    for (auto& [target, value] : n.assignments) RETURN_IF_ERROR(Visit(value));
    return Visit(n.body);
  }
  absl::Status VisitNode(GenerationNode& n) { return Visit(n.body); }

  int line_ = 0;  // of the expression being visited
};

}  // namespace

absl::Status Check(Body& body) { return Checker().Visit(body); }

}  // namespace quire::jinja
