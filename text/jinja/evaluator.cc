#include "text/jinja/evaluator.h"

#include <utility>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "text/jinja/attributes.h"
#include "text/jinja/filters.h"
#include "text/jinja/globals.h"
#include "text/jinja/operators.h"
#include "text/jinja/predicates.h"
#include "text/jinja/write.h"

namespace quire::jinja {
namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

}  // namespace

Evaluator::~Evaluator() {
  // Values in namespaces may point to objects in macros_ and cycles_, so the namespaces are cleared
  // before any member is destroyed.
  for (Namespace& name_space : namespaces_) name_space.attributes = Dict();
  for (const std::weak_ptr<LoopState>& remembering : remembering_loops_) {
    if (const std::shared_ptr<LoopState> loop = remembering.lock()) loop->last_changed.reset();
  }
}

absl::Status Evaluator::Raise(const std::string& message) {
  error_has_line_ = true;
  return absl::InvalidArgumentError(message);
}

absl::Status Evaluator::AtLine(int line, absl::Status status) {
  if (error_has_line_) return status;
  error_has_line_ = true;
  return absl::Status(status.code(), absl::StrCat("line ", line, ": ", status.message()));
}

Value Evaluator::NewNamespace(Dict attributes) {
  namespaces_.push_back({std::move(attributes)});
  return Value::Of(&namespaces_.back());
}

Value Evaluator::NewCycle(CycleState state) {
  cycles_.push_back(std::move(state));
  return Value::Of(&cycles_.back());
}

Value Evaluator::NewMacro(const MacroNode& node) {
  macros_.push_back({&node, scope_});
  return Value::Of(&macros_.back());
}

absl::StatusOr<Value> Evaluator::Checked(Value value) {
  if (!budget_.CheckValueDepth(value.depth())) return budget_.status();
  return value;
}

const Value* Evaluator::Find(const std::string& name) const {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->outer.get()) {
    if (const auto it = scope->names.find(name); it != scope->names.end()) return &it->second;
  }
  return nullptr;
}

absl::StatusOr<Value> Evaluator::Eval(const Expr& expr) {
  if (!budget_.Enter() || !budget_.Spend(1)) return AtLine(expr.line, budget_.status());
  absl::StatusOr<Value> value = EvalNode(expr);
  budget_.Leave();
  // Once the budget is exhausted, any other error is a consequence, so the budget's error is
  // reported.
  if (budget_.exhausted() && !error_has_line_) return AtLine(expr.line, budget_.status());
  if (!value.ok()) return AtLine(expr.line, value.status());
  return value;
}

absl::StatusOr<Value> Evaluator::EvalNode(const Expr& expr) {
  return std::visit(Overloaded{
                        [](const ConstantExpr& e) -> absl::StatusOr<Value> { return e.value; },
                        [this](const NameExpr& e) { return EvalName(e); },
                        [this](const SequenceExpr& e) { return EvalSequence(e); },
                        [this](const DictExpr& e) { return EvalDict(e); },
                        [this](const UnaryExpr& e) { return EvalUnary(e); },
                        [this](const BinaryExpr& e) { return EvalBinary(e); },
                        [this](const ConcatExpr& e) { return EvalConcat(e); },
                        [this](const CompareExpr& e) { return EvalCompare(e); },
                        [this](const ConditionalExpr& e) { return EvalConditional(e); },
                        [this](const AttributeExpr& e) { return EvalAttribute(e); },
                        [this](const SubscriptExpr& e) { return EvalSubscript(e); },
                        [this](const SliceExpr& e) { return EvalSlice(e); },
                        [this](const CallExpr& e) { return EvalCall(e); },
                        [this](const FilterExpr& e) { return EvalFilter(e); },
                        [this](const TestExpr& e) { return EvalTest(e); },
                    },
                    expr.node);
}

absl::StatusOr<Value> Evaluator::EvalName(const NameExpr& name) {
  if (const Value* value = Find(name.name)) return *value;
  if (std::optional<Value> global = FindGlobal(name.name)) return *std::move(global);
  return Value::MakeUndefined(absl::StrCat("'", name.name, "' is undefined"));
}

absl::StatusOr<Value> Evaluator::EvalSequence(const SequenceExpr& sequence) {
  std::vector<Value> items;
  items.reserve(sequence.items.size());
  for (const ExprPtr& item : sequence.items) {
    ASSIGN_OR_RETURN(Value value, Eval(*item));
    items.push_back(std::move(value));
  }
  return Checked(Value::List(std::move(items), sequence.type));
}

absl::StatusOr<Value> Evaluator::EvalDict(const DictExpr& node) {
  Dict dict;
  for (const auto& [key_expr, value_expr] : node.entries) {
    ASSIGN_OR_RETURN(const Value key, Eval(*key_expr));
    ASSIGN_OR_RETURN(Value value, Eval(*value_expr));
    if (!dict.Set(key, std::move(value), budget_)) {
      return absl::InvalidArgumentError(absl::StrFormat("unhashable type: '%s'", key.TypeName()));
    }
  }
  return Checked(Value::MakeDict(std::move(dict)));
}

absl::StatusOr<Value> Evaluator::EvalUnary(const UnaryExpr& unary) {
  ASSIGN_OR_RETURN(const Value operand, Eval(*unary.operand));
  if (unary.op == UnaryOp::kNot) return Value::Bool(!operand.Truthy());
  return Negate(unary.op, operand);
}

absl::StatusOr<Value> Evaluator::EvalBinary(const BinaryExpr& binary) {
  ASSIGN_OR_RETURN(Value left, Eval(*binary.left));
  if (binary.op == BinaryOp::kAnd && !left.Truthy()) return left;
  if (binary.op == BinaryOp::kOr && left.Truthy()) return left;
  ASSIGN_OR_RETURN(Value right, Eval(*binary.right));
  if (binary.op == BinaryOp::kAnd || binary.op == BinaryOp::kOr) return right;
  ASSIGN_OR_RETURN(Value result, Arithmetic(binary.op, left, right, budget_));
  return Checked(std::move(result));
}

absl::StatusOr<Value> Evaluator::EvalConcat(const ConcatExpr& concat) {
  TracedText text;
  for (const ExprPtr& part : concat.parts) {
    ASSIGN_OR_RETURN(const Value value, Eval(*part));
    ASSIGN_OR_RETURN(const TracedText part_text, ToText(value, budget_));
    text.Append(part_text);
  }
  if (!budget_.SpendBytes(static_cast<int64_t>(text.bytes.size()))) return budget_.status();
  return Value::String(std::move(text));
}

absl::StatusOr<Value> Evaluator::EvalCompare(const CompareExpr& compare) {
  ASSIGN_OR_RETURN(Value left, Eval(*compare.first));
  for (const auto& [op, operand] : compare.rest) {
    ASSIGN_OR_RETURN(Value right, Eval(*operand));
    ASSIGN_OR_RETURN(const bool holds, Compare(op, left, right, budget_));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

absl::StatusOr<Value> Evaluator::EvalConditional(const ConditionalExpr& conditional) {
  ASSIGN_OR_RETURN(const Value condition, Eval(*conditional.condition));
  if (condition.Truthy()) return Eval(*conditional.then);
  if (conditional.otherwise != nullptr) return Eval(*conditional.otherwise);
  return Value::MakeUndefined(
      "the inline if-expression evaluated to false and no else section was defined.");
}

absl::StatusOr<Value> Evaluator::EvalAttribute(const AttributeExpr& attribute) {
  ASSIGN_OR_RETURN(const Value object, Eval(*attribute.object));
  return GetAttribute(*this, object, attribute.name);
}

absl::StatusOr<Value> Evaluator::EvalSubscript(const SubscriptExpr& subscript) {
  ASSIGN_OR_RETURN(const Value object, Eval(*subscript.object));
  ASSIGN_OR_RETURN(const Value index, Eval(*subscript.index));
  return GetItem(*this, object, index);
}

absl::StatusOr<Value> Evaluator::EvalSlice(const SliceExpr& slice) {
  ASSIGN_OR_RETURN(const Value object, Eval(*slice.object));
  Value parts[3] = {Value::MakeNone(), Value::MakeNone(), Value::MakeNone()};
  const Expr* exprs[3] = {slice.begin.get(), slice.end.get(), slice.step.get()};
  for (int i = 0; i < 3; ++i) {
    if (exprs[i] == nullptr) continue;
    ASSIGN_OR_RETURN(parts[i], Eval(*exprs[i]));
  }
  return Slice(object, parts[0], parts[1], parts[2], budget_);
}

absl::StatusOr<CallArguments> Evaluator::EvalArguments(const Arguments& arguments) {
  CallArguments values;
  for (const ExprPtr& expr : arguments.positional) {
    ASSIGN_OR_RETURN(Value value, Eval(*expr));
    values.positional.push_back(std::move(value));
  }
  if (arguments.star != nullptr) {
    ASSIGN_OR_RETURN(const Value star, Eval(*arguments.star));
    ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(star, budget_));
    values.positional.insert(values.positional.end(), items.begin(), items.end());
  }
  for (const auto& [name, expr] : arguments.keyword) {
    ASSIGN_OR_RETURN(Value value, Eval(*expr));
    values.keyword.emplace_back(name, std::move(value));
  }
  if (arguments.star_star != nullptr) {
    ASSIGN_OR_RETURN(const Value star_star, Eval(*arguments.star_star));
    if (!star_star.is_dict())
      return absl::InvalidArgumentError("argument after ** must be a mapping");
    for (const auto& [key, value] : star_star.dict().entries()) {
      if (!key.is_string()) return absl::InvalidArgumentError("keywords must be strings");
      if (key.text().has_content()) {
        return absl::InvalidArgumentError("keywords must not come from a literal content");
      }
      values.keyword.emplace_back(key.str(), value);
    }
    if (!budget_.Spend(static_cast<int64_t>(star_star.dict().entries().size())))
      return budget_.status();
  }
  return values;
}

absl::StatusOr<Value> Evaluator::EvalCall(const CallExpr& call) {
  ASSIGN_OR_RETURN(const Value function, Eval(*call.function));
  ASSIGN_OR_RETURN(CallArguments arguments, EvalArguments(call.arguments));
  return Call(function, std::move(arguments));
}

absl::StatusOr<Value> Evaluator::Call(const Value& function, CallArguments arguments) {
  if (function.is_undefined()) return UndefinedError(function);
  if (const auto* macro = function.get<MacroObject*>())
    return CallMacro(**macro, std::move(arguments));
  if (const auto* method = function.get<std::shared_ptr<const BoundMethod>>()) {
    ASSIGN_OR_RETURN(Value result, CallMethod(*this, **method, arguments));
    return Checked(std::move(result));
  }
  if (const auto* global = function.get<GlobalFunction>()) {
    ASSIGN_OR_RETURN(Value result, CallGlobal(*this, *global, arguments));
    return Checked(std::move(result));
  }
  if (const auto* cycle = function.get<CycleState*>()) return CallCycle(**cycle, arguments);
  return absl::InvalidArgumentError(
      absl::StrFormat("'%s' object is not callable", function.TypeName()));
}

absl::StatusOr<Value> Evaluator::EvalFilter(const FilterExpr& filter) {
  Value input;
  if (filter.input != nullptr) {
    ASSIGN_OR_RETURN(input, Eval(*filter.input));
  } else {
    input = *block_input_;
  }
  ASSIGN_OR_RETURN(const CallArguments arguments, EvalArguments(filter.arguments));
  ASSIGN_OR_RETURN(Value result, filter.filter->function(*this, input, arguments));
  return Checked(std::move(result));
}

absl::StatusOr<Value> Evaluator::ApplyFilters(const Expr& chain, Value input) {
  const Value* const outer = std::exchange(block_input_, &input);
  absl::StatusOr<Value> result = Eval(chain);
  block_input_ = outer;
  return result;
}

absl::StatusOr<Value> Evaluator::EvalTest(const TestExpr& test) {
  ASSIGN_OR_RETURN(const Value input, Eval(*test.input));
  ASSIGN_OR_RETURN(const CallArguments arguments, EvalArguments(test.arguments));
  ASSIGN_OR_RETURN(const bool holds, test.test->function(*this, input, arguments));
  return Value::Bool(holds);
}

}  // namespace quire::jinja
