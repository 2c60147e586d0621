#include "text/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "text/jinja/format.h"
#include "text/jinja/text.h"

namespace quire::jinja {
namespace {

std::string_view Symbol(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return "+";
    case BinaryOp::kSubtract:
      return "-";
    case BinaryOp::kMultiply:
      return "*";
    case BinaryOp::kDivide:
      return "/";
    case BinaryOp::kFloorDivide:
      return "//";
    case BinaryOp::kModulo:
      return "%";
    case BinaryOp::kPower:
      return "**";
    case BinaryOp::kAnd:
      return "and";
    case BinaryOp::kOr:
      return "or";
  }
  return "?";
}

std::string_view Symbol(CompareOp op) {
  switch (op) {
    case CompareOp::kLess:
      return "<";
    case CompareOp::kLessEqual:
      return "<=";
    case CompareOp::kGreater:
      return ">";
    default:
      return ">=";
  }
}

absl::Status Overflow() { return absl::InvalidArgumentError("an integer does not fit in 64 bits"); }
absl::Status DivisionByZero() { return absl::InvalidArgumentError("division by zero"); }

absl::StatusOr<Value> IntPower(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return Overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return Overflow();
  }
  return Value::Int(result);
}

absl::StatusOr<Value> IntArithmetic(BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case BinaryOp::kAdd:
      return __builtin_add_overflow(a, b, &result) ? Overflow()
                                                   : absl::StatusOr<Value>(Value::Int(result));
    case BinaryOp::kSubtract:
      return __builtin_sub_overflow(a, b, &result) ? Overflow()
                                                   : absl::StatusOr<Value>(Value::Int(result));
    case BinaryOp::kMultiply:
      return __builtin_mul_overflow(a, b, &result) ? Overflow()
                                                   : absl::StatusOr<Value>(Value::Int(result));
    case BinaryOp::kDivide:
      if (b == 0) return DivisionByZero();
      return Value::Float(static_cast<double>(a) / static_cast<double>(b));
    case BinaryOp::kFloorDivide:
    case BinaryOp::kModulo: {
      if (b == 0) return DivisionByZero();
      if (b == -1) {  // INT64_MIN / -1 does not fit
        if (op == BinaryOp::kModulo) return Value::Int(0);
        return __builtin_sub_overflow(int64_t{0}, a, &result)
                   ? Overflow()
                   : absl::StatusOr<Value>(Value::Int(result));
      }
      int64_t quotient = a / b;
      int64_t remainder = a % b;
      if (remainder != 0 && (remainder < 0) != (b < 0)) {  // Python rounds down
        --quotient;
        remainder += b;
      }
      return Value::Int(op == BinaryOp::kModulo ? remainder : quotient);
    }
    default:
      if (b >= 0) return IntPower(a, b);
      if (a == 0) return DivisionByZero();
      return Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)));
  }
}

absl::StatusOr<Value> FloatArithmetic(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return Value::Float(a + b);
    case BinaryOp::kSubtract:
      return Value::Float(a - b);
    case BinaryOp::kMultiply:
      return Value::Float(a * b);
    case BinaryOp::kDivide:
      if (b == 0) return DivisionByZero();
      return Value::Float(a / b);
    case BinaryOp::kFloorDivide:
    case BinaryOp::kModulo: {
      if (b == 0) return DivisionByZero();
      double remainder = std::fmod(a, b);
      double quotient = (a - remainder) / b;
      if (remainder != 0 && (remainder < 0) != (b < 0)) {
        remainder += b;
        quotient -= 1;
      }
      if (op == BinaryOp::kModulo)
        return Value::Float(remainder == 0 ? std::copysign(0.0, b) : remainder);
      double floored = std::floor(quotient);
      if (quotient - floored > 0.5) floored += 1;
      return Value::Float(quotient == 0 ? std::copysign(0.0, a / b) : floored);
    }
    default: {
      if (a == 0 && b < 0) return DivisionByZero();
      const double result = std::pow(a, b);
      if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) {
        return absl::InvalidArgumentError("a power of a negative number is complex");
      }
      if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) {
        return absl::InvalidArgumentError("a power is out of range");
      }
      return Value::Float(result);
    }
  }
}

absl::StatusOr<Value> AddTexts(const Value& left, const Value& right, Budget& budget) {
  const bool markup = left.text().markup || right.text().markup;
  if (!budget.SpendBytes(static_cast<int64_t>(left.str().size() + right.str().size())))
    return budget.status();
  TracedText sum;
  for (const Value* value : {&left, &right}) {
    sum.Append(markup && !value->text().markup ? EscapeHtml(value->text())
                                               : TracedText(value->text()));
  }
  return Value::String(std::move(sum), markup);
}

bool IsListOrTuple(const Value& value) {
  return value.is_sequence(SequenceType::kList) || value.is_sequence(SequenceType::kTuple);
}

absl::StatusOr<Value> Repeat(const Value& value, int64_t times, Budget& budget) {
  times = std::max<int64_t>(times, 0);
  if (value.is_string()) {
    int64_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<int64_t>(value.str().size()), times, &bytes))
      return Overflow();
    if (!budget.SpendBytes(bytes)) return budget.status();
    TracedText out;
    out.bytes.reserve(static_cast<size_t>(bytes));
    for (int64_t i = 0; bytes > 0 && i < times; ++i) out.Append(value.text());
    return Value::String(std::move(out), value.text().markup);
  }
  int64_t count = 0;
  if (__builtin_mul_overflow(static_cast<int64_t>(value.items().size()), times, &count))
    return Overflow();
  if (!budget.SpendValues(count, sizeof(Value))) return budget.status();
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; count > 0 && i < times; ++i) {
    items.insert(items.end(), value.items().begin(), value.items().end());
  }
  return Value::List(std::move(items), value.sequence().type);
}

// Returns -1, 0 or 1. An int and a float are compared exactly, as in Python.
int CompareNumbers(const Value& left, const Value& right) {
  const auto sign = [](auto a, auto b) { return a < b ? -1 : a > b ? 1 : 0; };
  if (!left.is_float() && !right.is_float()) return sign(left.as_int(), right.as_int());
  if (left.is_float() && right.is_float()) return sign(left.as_float(), right.as_float());
  if (left.is_float()) return -CompareNumbers(right, left);
  const double d = right.as_float();
  if (d >= 9223372036854775808.0) return -1;
  if (d < -9223372036854775808.0) return 1;
  const auto whole = static_cast<int64_t>(d);
  if (left.as_int() != whole) return sign(left.as_int(), whole);
  return sign(0.0, d - static_cast<double>(whole));
}

bool IsNan(const Value& value) { return value.is_float() && std::isnan(value.as_float()); }

// Returns true if the comparison `op` of `left` and `right` holds. `op` is one of <, <=, >, >=.
absl::StatusOr<bool> Less(CompareOp op, const Value& left, const Value& right, Budget& budget) {
  if (left.is_undefined()) return UndefinedError(left);
  if (right.is_undefined()) return UndefinedError(right);
  if (!budget.Spend(1)) return budget.status();
  const auto holds = [op](int order) {
    switch (op) {
      case CompareOp::kLess:
        return order < 0;
      case CompareOp::kLessEqual:
        return order <= 0;
      case CompareOp::kGreater:
        return order > 0;
      default:
        return order >= 0;
    }
  };
  if (left.is_number() && right.is_number()) {
    if (IsNan(left) || IsNan(right)) return false;
    return holds(CompareNumbers(left, right));
  }
  if (left.is_string() && right.is_string()) {  // UTF-8 bytes sort as their code points do
    if (!budget.SpendBytes(static_cast<int64_t>(std::min(left.str().size(), right.str().size())))) {
      return budget.status();
    }
    return holds(left.str().compare(right.str()));
  }
  if (IsListOrTuple(left) && IsListOrTuple(right) &&
      left.sequence().type == right.sequence().type) {
    const auto& a = left.items();
    const auto& b = right.items();
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (!Equal(a[i], b[i], budget)) return Less(op, a[i], b[i], budget);
    }
    return holds(a.size() < b.size() ? -1 : a.size() > b.size() ? 1 : 0);
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("'%s' not supported between instances of '%s' and '%s'", Symbol(op),
                      left.TypeName(), right.TypeName()));
}

}  // namespace

absl::Status UndefinedError(const Value& undefined) {
  const std::string* why = undefined.undefined_reason();
  return absl::InvalidArgumentError(why == nullptr ? "a value is undefined" : *why);
}

absl::StatusOr<Value> Arithmetic(BinaryOp op, const Value& left, const Value& right,
                                 Budget& budget) {
  if (op == BinaryOp::kModulo && left.is_string()) return PercentFormat(left, right, budget);
  if (left.is_undefined()) return UndefinedError(left);
  if (right.is_undefined()) return UndefinedError(right);
  if (left.is_number() && right.is_number()) {
    if (left.is_float() || right.is_float())
      return FloatArithmetic(op, left.as_float(), right.as_float());
    return IntArithmetic(op, left.as_int(), right.as_int());
  }
  if (op == BinaryOp::kAdd) {
    if (left.is_string() && right.is_string()) return AddTexts(left, right, budget);
    if (IsListOrTuple(left) && right.is_sequence(left.sequence().type)) {
      const size_t count = left.items().size() + right.items().size();
      if (!budget.SpendValues(static_cast<int64_t>(count), sizeof(Value))) return budget.status();
      std::vector<Value> items;
      items.reserve(count);
      items.insert(items.end(), left.items().begin(), left.items().end());
      items.insert(items.end(), right.items().begin(), right.items().end());
      return Value::List(std::move(items), left.sequence().type);
    }
  }
  if (op == BinaryOp::kMultiply) {
    if ((left.is_string() || IsListOrTuple(left)) && right.is_integral()) {
      return Repeat(left, right.as_int(), budget);
    }
    if ((right.is_string() || IsListOrTuple(right)) && left.is_integral()) {
      return Repeat(right, left.as_int(), budget);
    }
  }
  if (op == BinaryOp::kAdd && left.is_string()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("can only concatenate str (not \"%s\") to str", right.TypeName()));
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("unsupported operand type(s) for %s: '%s' and '%s'", Symbol(op),
                      left.TypeName(), right.TypeName()));
}

absl::StatusOr<Value> Negate(UnaryOp op, const Value& value) {
  if (value.is_undefined()) return UndefinedError(value);
  if (value.is_float())
    return Value::Float(op == UnaryOp::kPlus ? value.as_float() : -value.as_float());
  if (value.is_integral()) {
    if (op == UnaryOp::kPlus) return Value::Int(value.as_int());
    return IntArithmetic(BinaryOp::kSubtract, 0, value.as_int());
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "bad operand type for unary %s: '%s'", op == UnaryOp::kPlus ? "+" : "-", value.TypeName()));
}

bool Equal(const Value& left, const Value& right, Budget& budget) {
  if (!budget.Spend(1)) return false;
  if (left.is_number() && right.is_number()) {
    return !IsNan(left) && !IsNan(right) && CompareNumbers(left, right) == 0;
  }
  if (left.is_string() && right.is_string()) return left.str() == right.str();
  if (left.is_none() || left.is_undefined()) {
    return left.is_none() ? right.is_none() : right.is_undefined();
  }
  if (left.is_sequence() && right.is_sequence()) {
    if (&left.sequence() == &right.sequence()) return true;
    if (left.sequence().type != right.sequence().type ||
        left.items().size() != right.items().size() || left.is_sequence(SequenceType::kGenerator)) {
      return false;
    }
    for (size_t i = 0; i < left.items().size(); ++i) {
      if (!Equal(left.items()[i], right.items()[i], budget)) return false;
    }
    return true;
  }
  if (left.is_dict() && right.is_dict()) {
    if (left.dict().entries().size() != right.dict().entries().size()) return false;
    for (const auto& [key, value] : left.dict().entries()) {
      const Value* other = right.dict().Find(key, budget);
      if (other == nullptr || !Equal(value, *other, budget)) return false;
    }
    return true;
  }
  // Objects are equal only to themselves.
  if (left.is_namespace() && right.is_namespace()) return &left.name_space() == &right.name_space();
  const auto is_same = [&]<typename Object>() {
    const Object *a = left.get<Object>(), *b = right.get<Object>();
    return a != nullptr && b != nullptr && *a == *b;
  };
  return is_same.operator()<MacroObject*>() || is_same.operator()<CycleState*>() ||
         is_same.operator()<std::shared_ptr<LoopState>>();
}

absl::StatusOr<bool> Contains(const Value& container, const Value& item, Budget& budget) {
  if (container.is_string()) {
    if (!item.is_string()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "'in <string>' requires string as left operand, not %s", item.TypeName()));
    }
    if (!budget.SpendBytes(static_cast<int64_t>(container.str().size()))) return budget.status();
    return container.str().find(item.str()) != std::string::npos;
  }
  if (container.is_dict()) {
    std::string hash;
    if (!HashKey(item, budget, &hash)) {
      if (budget.exhausted()) return budget.status();
      return absl::InvalidArgumentError(absl::StrFormat("unhashable type: '%s'", item.TypeName()));
    }
    return container.dict().Find(item, budget) != nullptr;
  }
  if (!container.is_sequence() && !container.is_undefined()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("argument of type '%s' is not iterable", container.TypeName()));
  }
  ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(container, budget));
  for (const Value& other : items) {
    if (Equal(other, item, budget)) return true;
  }
  if (budget.exhausted()) return budget.status();
  return false;
}

absl::StatusOr<bool> Compare(CompareOp op, const Value& left, const Value& right, Budget& budget) {
  switch (op) {
    case CompareOp::kEqual:
    case CompareOp::kNotEqual: {
      const bool equal = Equal(left, right, budget);
      if (budget.exhausted()) return budget.status();
      return equal == (op == CompareOp::kEqual);
    }
    case CompareOp::kIn:
      return Contains(right, left, budget);
    case CompareOp::kNotIn: {
      ASSIGN_OR_RETURN(const bool contains, Contains(right, left, budget));
      return !contains;
    }
    default:
      return Less(op, left, right, budget);
  }
}

}  // namespace quire::jinja
