// The part of Evaluator that executes statements.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/write.h"

namespace quire::jinja {

// Makes a scope the current one until the end of the block.
class Evaluator::ScopeGuard {
 public:
  ScopeGuard(Evaluator& evaluator, std::shared_ptr<Scope> scope)
      : evaluator_(evaluator), outer_(std::exchange(evaluator.scope_, std::move(scope))) {}
  ~ScopeGuard() { evaluator_.scope_ = std::move(outer_); }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  Evaluator& evaluator_;
  std::shared_ptr<Scope> outer_;
};

namespace {

// Returns a new scope inside `outer`. The outer scope of a macro is the scope of its definition,
// not of its call. So a chain of scopes is never longer than the nesting of the source.
std::shared_ptr<Scope> Inside(const std::shared_ptr<Scope>& outer) {
  auto scope = std::make_shared<Scope>();
  scope->outer = outer;
  return scope;
}

}  // namespace

absl::StatusOr<TracedText> Evaluator::Run(const Body& body, const Dict& variables) {
  for (const auto& [name, value] : variables.entries()) scope_->names[name.str()] = value;
  // The template runs in a scope of its own, so that the names that it sets shadow the variables.
  return Capture(body, Inside(scope_));
}

absl::Status Evaluator::Emit(const TracedText& text) {
  if (static_cast<int64_t>(out_->bytes.size() + text.bytes.size()) >
      budget_.limits().max_output_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the output is longer than %d bytes", budget_.limits().max_output_bytes));
  }
  if (!budget_.SpendBytes(static_cast<int64_t>(text.bytes.size()))) return budget_.status();
  out_->Append(text);
  return absl::OkStatus();
}

absl::StatusOr<TracedText> Evaluator::Capture(const Body& body, std::shared_ptr<Scope> scope,
                                              Flow* left_by) {
  TracedText text;
  TracedText* const outer = std::exchange(out_, &text);
  const ScopeGuard guard(*this, std::move(scope));
  const absl::StatusOr<Flow> flow = Exec(body);
  out_ = outer;
  if (!flow.ok()) return flow.status();
  if (left_by != nullptr) *left_by = *flow;
  return text;
}

absl::Status Evaluator::Assign(const Target& target, const Value& value) {
  switch (target.kind) {
    case Target::Kind::kName:
      scope_->names[target.name] = value;
      return absl::OkStatus();
    case Target::Kind::kAttribute: {
      const Value* object = Find(target.name);
      if (object == nullptr || !object->is_namespace()) {
        return absl::InvalidArgumentError("cannot assign attribute on non-namespace object");
      }
      if (target.attribute.starts_with("_")) {
        return absl::InvalidArgumentError(
            absl::StrCat("a namespace cannot store the attribute '", target.attribute, "'"));
      }
      object->name_space().attributes.SetText(target.attribute, value);
      return absl::OkStatus();
    }
    case Target::Kind::kTuple: {
      ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(value, budget_));
      if (items.size() != target.parts.size()) {
        return absl::InvalidArgumentError(absl::StrFormat("cannot unpack %d values into %d names",
                                                          items.size(), target.parts.size()));
      }
      for (size_t i = 0; i < items.size(); ++i) RETURN_IF_ERROR(Assign(target.parts[i], items[i]));
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Evaluator::Flow> Evaluator::Exec(const Body& body) {
  for (const std::unique_ptr<Node>& node : body) {
    if (!budget_.Enter() || !budget_.Spend(1)) return AtLine(node->line, budget_.status());
    const absl::StatusOr<Flow> flow = ExecNode(*node);
    budget_.Leave();
    if (!flow.ok()) return AtLine(node->line, flow.status());
    if (*flow != Flow::kNext) return *flow;
  }
  return Flow::kNext;
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecNode(const Node& node) {
  const auto next = [](absl::Status status) -> absl::StatusOr<Flow> {
    if (!status.ok()) return status;
    return Flow::kNext;
  };
  if (const auto* text = std::get_if<TextNode>(&node.node)) return next(Emit(text->text));
  if (const auto* output = std::get_if<OutputNode>(&node.node)) return next(ExecOutput(*output));
  if (const auto* branch = std::get_if<IfNode>(&node.node)) return ExecIf(*branch);
  if (const auto* loop = std::get_if<ForNode>(&node.node)) return ExecFor(*loop);
  if (const auto* set = std::get_if<SetNode>(&node.node)) {
    ASSIGN_OR_RETURN(const Value value, Eval(*set->value));
    return next(Assign(set->target, value));
  }
  if (const auto* set = std::get_if<SetBlockNode>(&node.node)) return ExecSetBlock(*set);
  if (const auto* macro = std::get_if<MacroNode>(&node.node)) {
    scope_->names[macro->name] = NewMacro(*macro);
    return Flow::kNext;
  }
  if (const auto* call = std::get_if<CallBlockNode>(&node.node)) return next(ExecCallBlock(*call));
  if (const auto* filter = std::get_if<FilterBlockNode>(&node.node))
    return ExecFilterBlock(*filter);
  if (const auto* with = std::get_if<WithNode>(&node.node)) return ExecWith(*with);
  if (const auto* generation = std::get_if<GenerationNode>(&node.node)) {
    return next(ExecGeneration(*generation));
  }
  return std::holds_alternative<BreakNode>(node.node) ? Flow::kBreak : Flow::kContinue;
}

absl::Status Evaluator::ExecOutput(const OutputNode& node) {
  ASSIGN_OR_RETURN(const Value value, Eval(*node.value));
  if (value.is_string()) return Emit(value.text());
  ASSIGN_OR_RETURN(const TracedText text, ToText(value, budget_));
  return Emit(text);
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecIf(const IfNode& node) {
  for (const auto& [condition, body] : node.branches) {
    ASSIGN_OR_RETURN(const Value value, Eval(*condition));
    if (value.Truthy()) return Exec(body);
  }
  return Exec(node.otherwise);
}

absl::StatusOr<std::vector<Value>> Evaluator::LoopItems(const ForNode& node) {
  ASSIGN_OR_RETURN(const Value iterable, Eval(*node.iterable));
  ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(iterable, budget_));
  if (node.condition == nullptr) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    const ScopeGuard guard(*this, Inside(scope_));
    RETURN_IF_ERROR(Assign(node.target, item));
    ASSIGN_OR_RETURN(const Value keep, Eval(*node.condition));
    if (keep.Truthy()) kept.push_back(std::move(item));
  }
  return kept;
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecFor(const ForNode& node) {
  auto loop = std::make_shared<LoopState>();
  ASSIGN_OR_RETURN(loop->items, LoopItems(node));
  for (const Value& item : loop->items) loop->depth = std::max(loop->depth, item.depth() + 1);
  if (!budget_.CheckValueDepth(loop->depth)) return budget_.status();
  bool completed = false;  // as in Jinja2, {% else %} runs unless an iteration ran the whole body
  for (size_t i = 0; i < loop->items.size(); ++i) {
    if (!budget_.Spend(1)) return budget_.status();
    loop->index0 = static_cast<int64_t>(i);
    const ScopeGuard guard(*this, Inside(scope_));
    scope_->names["loop"] = Value::Of(loop);
    RETURN_IF_ERROR(Assign(node.target, loop->items[i]));
    ASSIGN_OR_RETURN(const Flow flow, Exec(node.body));
    if (flow == Flow::kBreak) break;
    completed = completed || flow == Flow::kNext;
  }
  if (completed) return Flow::kNext;
  const ScopeGuard guard(*this, Inside(scope_));
  return Exec(node.otherwise);
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecSetBlock(const SetBlockNode& node) {
  Flow left_by = Flow::kNext;
  ASSIGN_OR_RETURN(TracedText text, Capture(node.body, Inside(scope_), &left_by));
  if (left_by != Flow::kNext) return left_by;  // a break in the body drops the text of the body
  Value value = Value::String(std::move(text));
  if (node.filter != nullptr) {
    ASSIGN_OR_RETURN(value, ApplyFilters(*node.filter, std::move(value)));
  }
  RETURN_IF_ERROR(Assign(node.target, value));
  return Flow::kNext;
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecFilterBlock(const FilterBlockNode& node) {
  Flow left_by = Flow::kNext;
  ASSIGN_OR_RETURN(TracedText text, Capture(node.body, Inside(scope_), &left_by));
  if (left_by != Flow::kNext) return left_by;
  ASSIGN_OR_RETURN(const Value value, ApplyFilters(*node.filter, Value::String(std::move(text))));
  if (!value.is_string()) return absl::InvalidArgumentError("a filter block must make text");
  RETURN_IF_ERROR(Emit(value.text()));
  return Flow::kNext;
}

absl::Status Evaluator::ExecGeneration(const GenerationNode& node) {
  ASSIGN_OR_RETURN(const TracedText text, Capture(node.body, Inside(scope_)));
  return Emit(text);
}

absl::Status Evaluator::ExecCallBlock(const CallBlockNode& node) {
  const auto& call = std::get<CallExpr>(node.call->node);
  ASSIGN_OR_RETURN(const Value function, Eval(*call.function));
  ASSIGN_OR_RETURN(CallArguments arguments, EvalArguments(call.arguments));
  arguments.keyword.emplace_back("caller", NewMacro(node.caller));
  ASSIGN_OR_RETURN(const Value value, Call(function, std::move(arguments)));
  if (!value.is_string()) return absl::InvalidArgumentError("a call block must make text");
  return Emit(value.text());
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecWith(const WithNode& node) {
  // All values are computed in the outer scope, before any name is set.
  std::vector<Value> values;
  for (const auto& [target, expr] : node.assignments) {
    ASSIGN_OR_RETURN(Value value, Eval(*expr));
    values.push_back(std::move(value));
  }
  const ScopeGuard guard(*this, Inside(scope_));
  for (size_t i = 0; i < values.size(); ++i) {
    RETURN_IF_ERROR(Assign(node.assignments[i].first, values[i]));
  }
  return Exec(node.body);
}

absl::StatusOr<Value> Evaluator::CallMacro(const MacroObject& macro, CallArguments arguments) {
  const MacroNode& node = *macro.node;
  auto scope = Inside(macro.closure);
  const ScopeGuard guard(*this, scope);
  const auto take = [&arguments](std::string_view name) -> std::optional<Value> {
    const auto it = std::find_if(arguments.keyword.begin(), arguments.keyword.end(),
                                 [name](const auto& entry) { return entry.first == name; });
    if (it == arguments.keyword.end()) return std::nullopt;
    Value value = std::move(it->second);
    arguments.keyword.erase(it);
    return value;
  };
  bool caller_is_parameter = false;
  std::vector<std::optional<Value>> given(node.parameters.size());
  for (size_t i = 0; i < node.parameters.size(); ++i) {
    caller_is_parameter = caller_is_parameter || node.parameters[i].name == "caller";
    given[i] =
        i < arguments.positional.size() ? arguments.positional[i] : take(node.parameters[i].name);
  }
  for (size_t i = 0; i < given.size(); ++i) {
    const Parameter& parameter = node.parameters[i];
    Value value =
        Value::MakeUndefined(absl::StrCat("parameter '", parameter.name, "' was not provided"));
    if (given[i]) {
      value = *std::move(given[i]);
    } else if (parameter.default_value != nullptr) {
      ASSIGN_OR_RETURN(value, Eval(*parameter.default_value));
    }
    scope->names[parameter.name] = std::move(value);
  }
  if (node.uses_caller && !caller_is_parameter) {
    std::optional<Value> caller = take("caller");
    scope->names["caller"] =
        caller ? *std::move(caller) : Value::MakeUndefined("No caller defined");
  }
  if (node.uses_kwargs) {
    Dict kwargs;
    for (auto& [name, value] : arguments.keyword) kwargs.SetText(name, std::move(value));
    ASSIGN_OR_RETURN(scope->names["kwargs"], Checked(Value::MakeDict(std::move(kwargs))));
  } else if (!arguments.keyword.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat("macro '%s' takes no keyword argument '%s'",
                                                      node.name, arguments.keyword[0].first));
  }
  const size_t extra =
      arguments.positional.size() > given.size() ? arguments.positional.size() - given.size() : 0;
  if (node.uses_varargs) {
    std::vector<Value> rest(arguments.positional.end() - static_cast<std::ptrdiff_t>(extra),
                            arguments.positional.end());
    ASSIGN_OR_RETURN(scope->names["varargs"], Checked(Value::Tuple(std::move(rest))));
  } else if (extra > 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "macro '%s' takes not more than %d argument(s)", node.name, node.parameters.size()));
  }
  ASSIGN_OR_RETURN(TracedText text, Capture(node.body, scope));
  return Value::String(std::move(text));
}

}  // namespace quire::jinja
