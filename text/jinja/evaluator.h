#pragma once

// Runs one rendering of a checked template.

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "text/jinja/ast.h"
#include "text/jinja/call.h"
#include "text/jinja/value.h"

namespace quire::jinja {

// The names that one block assigns. Names of the enclosing blocks are found through `outer`.
struct Scope {
  std::shared_ptr<Scope> outer;
  absl::flat_hash_map<std::string, Value> names;
  [[no_unique_address]] Counted<96> counted = {};
};

// The state of the variable `loop` inside {% for %}.
struct LoopState {
  std::vector<Value> items;
  int64_t index0 = 0;
  int32_t depth = 1;
  std::optional<std::vector<Value>> last_changed;
  [[no_unique_address]] Counted<96> counted = {};
};

// A macro, or the body of a {% call %}: the code, and the scope in which it was defined. The
// Evaluator owns it.
struct MacroObject {
  const MacroNode* node;
  std::shared_ptr<Scope> closure;
  [[no_unique_address]] Counted<32> counted = {};
};

// The state of a cycler() or joiner(). The Evaluator owns it.
struct CycleState {
  bool is_joiner = false;
  std::vector<Value> items;  // of a joiner: only the separator
  size_t at = 0;
  [[no_unique_address]] Counted<48> counted = {};
};

// Renders one template once. Not thread-safe.
class Evaluator {
 public:
  Evaluator(Budget& budget, absl::Time now) : budget_(budget), now_(now) {}
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  // Returns the output of the template `body`. `variables` has the values of the global names of
  // the template.
  absl::StatusOr<TracedText> Run(const Body& body, const Dict& variables);

  // ---- For filters, tests, methods and functions.
  Budget& budget() { return budget_; }
  absl::Time now() const { return now_; }
  absl::StatusOr<Value> Call(const Value& function, CallArguments arguments);
  // Returns an error with exactly this text, without a line number, for raise_exception().
  absl::Status Raise(const std::string& message);
  Value NewNamespace(Dict attributes);
  Value NewCycle(CycleState state);
  // Clears loop->last_changed when the rendering ends. A value in last_changed may hold `loop`
  // itself. Such a loop would otherwise never be freed.
  void ForgetAtEnd(const std::shared_ptr<LoopState>& loop) { remembering_loops_.push_back(loop); }
  // Returns `value`, or InvalidArgument when it nests too deep. Called for every new list and dict.
  absl::StatusOr<Value> Checked(Value value);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  absl::StatusOr<Value> Eval(const Expr& expr);
  absl::StatusOr<Value> EvalNode(const Expr& expr);
  absl::StatusOr<Value> EvalName(const NameExpr& name);
  absl::StatusOr<Value> EvalSequence(const SequenceExpr& sequence);
  absl::StatusOr<Value> EvalDict(const DictExpr& dict);
  absl::StatusOr<Value> EvalUnary(const UnaryExpr& unary);
  absl::StatusOr<Value> EvalBinary(const BinaryExpr& binary);
  absl::StatusOr<Value> EvalConcat(const ConcatExpr& concat);
  absl::StatusOr<Value> EvalCompare(const CompareExpr& compare);
  absl::StatusOr<Value> EvalConditional(const ConditionalExpr& conditional);
  absl::StatusOr<Value> EvalAttribute(const AttributeExpr& attribute);
  absl::StatusOr<Value> EvalSubscript(const SubscriptExpr& subscript);
  absl::StatusOr<Value> EvalSlice(const SliceExpr& slice);
  absl::StatusOr<Value> EvalCall(const CallExpr& call);
  absl::StatusOr<Value> EvalFilter(const FilterExpr& filter);
  absl::StatusOr<Value> EvalTest(const TestExpr& test);
  absl::StatusOr<CallArguments> EvalArguments(const Arguments& arguments);

  absl::StatusOr<Flow> Exec(const Body& body);
  absl::StatusOr<Flow> ExecNode(const Node& node);
  absl::StatusOr<Flow> ExecIf(const IfNode& node);
  absl::StatusOr<Flow> ExecFor(const ForNode& node);
  absl::Status ExecOutput(const OutputNode& node);
  absl::StatusOr<Flow> ExecSetBlock(const SetBlockNode& node);
  absl::Status ExecCallBlock(const CallBlockNode& node);
  absl::StatusOr<Flow> ExecWith(const WithNode& node);
  absl::StatusOr<Flow> ExecFilterBlock(const FilterBlockNode& node);
  absl::Status ExecGeneration(const GenerationNode& node);

  absl::StatusOr<std::vector<Value>> LoopItems(const ForNode& node);
  absl::StatusOr<Value> CallMacro(const MacroObject& macro, CallArguments arguments);
  absl::StatusOr<Value> ApplyFilters(const Expr& chain, Value input);
  Value NewMacro(const MacroNode& node);

  absl::Status Emit(const TracedText& text);
  // Runs `body` in `scope` and returns its output.
  absl::StatusOr<TracedText> Capture(const Body& body, std::shared_ptr<Scope> scope,
                                     Flow* left_by = nullptr);
  absl::Status Assign(const Target& target, const Value& value);
  const Value* Find(const std::string& name) const;
  absl::Status AtLine(int line, absl::Status status);

  class ScopeGuard;

  Budget& budget_;
  const absl::Time now_;
  std::shared_ptr<Scope> scope_ = std::make_shared<Scope>();
  TracedText* out_ = nullptr;
  // The input of a FilterExpr whose `input` is null.
  const Value* block_input_ = nullptr;
  bool error_has_line_ = false;
  // The Evaluator owns the objects in these three deques, and values hold only plain pointers to
  // them. So objects that refer to each other do not leak.
  std::deque<Namespace> namespaces_;
  std::deque<MacroObject> macros_;
  std::deque<CycleState> cycles_;
  // The loops passed to ForgetAtEnd. The destructor clears their last_changed.
  std::vector<std::weak_ptr<LoopState>> remembering_loops_;
};

}  // namespace quire::jinja
