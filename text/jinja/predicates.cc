#include "text/jinja/predicates.h"

#include "base/status_macros.h"
#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/text.h"
#include "text/jinja/write.h"

namespace quire::jinja {
namespace {

// A test without arguments.
template <bool (*kHolds)(const Value&)>
absl::StatusOr<bool> Plain(Evaluator&, const Value& input, const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("test", arguments, {}).status());
  return kHolds(input);
}

bool IsDefined(const Value& v) { return !v.is_undefined(); }
bool IsUndefined(const Value& v) { return v.is_undefined(); }
bool IsNone(const Value& v) { return v.is_none(); }
bool IsString(const Value& v) { return v.is_string(); }
bool IsNumber(const Value& v) { return v.is_number(); }
bool IsInteger(const Value& v) { return v.is_int(); }
bool IsFloat(const Value& v) { return v.is_float(); }
bool IsBoolean(const Value& v) { return v.is_bool(); }
bool IsMapping(const Value& v) { return v.is_dict(); }
bool IsCallable(const Value& v) { return v.is_callable(); }
bool IsTrue(const Value& v) { return v.is_bool() && v.as_bool(); }
bool IsFalse(const Value& v) { return v.is_bool() && !v.as_bool(); }
bool IsEscaped(const Value& v) { return v.is_string() && v.text().markup; }

// True for values that have a length and a __getitem__ in Python.
bool IsSequence(const Value& v) {
  if (v.is_string() || v.is_dict() || v.is_undefined()) return true;
  return v.is_sequence(SequenceType::kList) || v.is_sequence(SequenceType::kTuple) ||
         v.is_sequence(SequenceType::kRange);
}
bool IsIterable(const Value& v) {
  return v.is_string() || v.is_dict() || v.is_undefined() || v.is_sequence() ||
         v.get<std::shared_ptr<LoopState>>() != nullptr;
}

template <CompareOp kOp>
absl::StatusOr<bool> Compared(Evaluator& evaluator, const Value& input,
                              const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("test", arguments, {"other"}, 1));
  return Compare(kOp, input, *bound[0], evaluator.budget());
}

absl::StatusOr<Value> Modulo(Evaluator& evaluator, const Value& input, const Value& by) {
  return Arithmetic(BinaryOp::kModulo, input, by, evaluator.budget());
}

template <int kRemainder>
absl::StatusOr<bool> Parity(Evaluator& evaluator, const Value& input,
                            const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("test", arguments, {}).status());
  ASSIGN_OR_RETURN(const Value remainder, Modulo(evaluator, input, Value::Int(2)));
  return Equal(remainder, Value::Int(kRemainder), evaluator.budget());
}

absl::StatusOr<bool> DivisibleBy(Evaluator& evaluator, const Value& input,
                                 const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("divisibleby", arguments, {"num"}, 1));
  ASSIGN_OR_RETURN(const Value remainder, Modulo(evaluator, input, *bound[0]));
  return Equal(remainder, Value::Int(0), evaluator.budget());
}

template <bool (*kHolds)(std::string_view)>
absl::StatusOr<bool> TextCase(Evaluator& evaluator, const Value& input,
                              const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("test", arguments, {}).status());
  ASSIGN_OR_RETURN(const TracedText text, ToText(input, evaluator.budget()));
  return kHolds(text.bytes);
}

// The test sameas, which is Python's `is`. Lists, tuples and dicts must be the same object. Other
// values must be equal and of the same type.
absl::StatusOr<bool> SameAs(Evaluator& evaluator, const Value& input,
                            const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("sameas", arguments, {"other"}, 1));
  const Value& other = *bound[0];
  if (input.is_sequence() && other.is_sequence()) return &input.sequence() == &other.sequence();
  if (input.is_dict() && other.is_dict()) return &input.dict() == &other.dict();
  return input.TypeName() == other.TypeName() && Equal(input, other, evaluator.budget());
}

absl::StatusOr<bool> IsFilter(Evaluator&, const Value& input, const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("filter", arguments, {}).status());
  return input.is_string() && FindFilter(input.str()) != nullptr;
}

absl::StatusOr<bool> IsTest(Evaluator&, const Value& input, const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("test", arguments, {}).status());
  return input.is_string() && FindTest(input.str()) != nullptr;
}

constexpr Test kTests[] = {
    {"!=", Compared<CompareOp::kNotEqual>},
    {"<", Compared<CompareOp::kLess>},
    {"<=", Compared<CompareOp::kLessEqual>},
    {"==", Compared<CompareOp::kEqual>},
    {">", Compared<CompareOp::kGreater>},
    {">=", Compared<CompareOp::kGreaterEqual>},
    {"boolean", Plain<IsBoolean>},
    {"callable", Plain<IsCallable>},
    {"defined", Plain<IsDefined>},
    {"divisibleby", DivisibleBy},
    {"eq", Compared<CompareOp::kEqual>},
    {"equalto", Compared<CompareOp::kEqual>},
    {"escaped", Plain<IsEscaped>},
    {"even", Parity<0>},
    {"false", Plain<IsFalse>},
    {"filter", IsFilter},
    {"float", Plain<IsFloat>},
    {"ge", Compared<CompareOp::kGreaterEqual>},
    {"greaterthan", Compared<CompareOp::kGreater>},
    {"gt", Compared<CompareOp::kGreater>},
    {"in", Compared<CompareOp::kIn>},
    {"integer", Plain<IsInteger>},
    {"iterable", Plain<IsIterable>},
    {"le", Compared<CompareOp::kLessEqual>},
    {"lessthan", Compared<CompareOp::kLess>},
    {"lower", TextCase<IsLower>},
    {"lt", Compared<CompareOp::kLess>},
    {"mapping", Plain<IsMapping>},
    {"ne", Compared<CompareOp::kNotEqual>},
    {"none", Plain<IsNone>},
    {"number", Plain<IsNumber>},
    {"odd", Parity<1>},
    {"sameas", SameAs},
    {"sequence", Plain<IsSequence>},
    {"string", Plain<IsString>},
    {"test", IsTest},
    {"true", Plain<IsTrue>},
    {"undefined", Plain<IsUndefined>},
    {"upper", TextCase<IsUpper>},
};

}  // namespace

const Test* FindTest(std::string_view name) {
  for (const Test& test : kTests) {
    if (test.name == name) return &test;
  }
  return nullptr;
}

}  // namespace quire::jinja
