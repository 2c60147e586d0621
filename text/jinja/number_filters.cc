// Filters on single values: numbers and defaults.

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/text.h"

namespace quire::jinja {
namespace {

// Removes the underscores that Python allows between digits. Returns false if an underscore is
// elsewhere.
bool DropUnderscores(std::string_view text, std::string* out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out->push_back(text[i]);
      continue;
    }
    const auto digit = [&](size_t at) {
      return at < text.size() && std::isxdigit(static_cast<unsigned char>(text[at]));
    };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) return false;
  }
  return true;
}

enum class Parsed { kYes, kNo, kTooLarge };

// int(text, base)
Parsed ParseInt(std::string_view text, int64_t base, int64_t* out) {
  text = StripLeft(StripRight(text));
  std::string digits;
  if (!DropUnderscores(text, &digits)) return Parsed::kNo;
  std::string_view rest = digits;
  const bool negative = rest.starts_with("-");
  if (negative || rest.starts_with("+")) rest.remove_prefix(1);
  const auto has_prefix = [&rest](char kind) {
    return rest.size() > 2 && rest[0] == '0' && (rest[1] | 32) == kind;
  };
  if ((base == 16 || base == 0) && has_prefix('x')) {
    base = 16;
    rest.remove_prefix(2);
  } else if ((base == 8 || base == 0) && has_prefix('o')) {
    base = 8;
    rest.remove_prefix(2);
  } else if ((base == 2 || base == 0) && has_prefix('b')) {
    base = 2;
    rest.remove_prefix(2);
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36 || rest.empty() || rest[0] == '-' || rest[0] == '+') return Parsed::kNo;
  const std::string signed_digits = (negative ? "-" : "") + std::string(rest);
  const auto result =
      std::from_chars(signed_digits.data(), signed_digits.data() + signed_digits.size(), *out,
                      static_cast<int>(base));
  if (result.ptr != signed_digits.data() + signed_digits.size()) return Parsed::kNo;
  if (result.ec == std::errc::result_out_of_range) return Parsed::kTooLarge;
  return result.ec == std::errc() ? Parsed::kYes : Parsed::kNo;
}

// float(text)
std::optional<double> ParseFloat(std::string_view text) {
  text = StripLeft(StripRight(text));
  std::string digits;
  if (!DropUnderscores(text, &digits) || digits.find_first_of("xXpP") != std::string::npos)
    return std::nullopt;
  double value = 0;
  // SimpleAtod accepts the same text as Python: decimal, exponent, inf and nan.
  if (!absl::SimpleAtod(digits, &value)) return std::nullopt;
  return value;
}

absl::StatusOr<Value> FromFloat(double number, const Value& if_not) {
  if (!std::isfinite(number)) return if_not;
  if (!(std::fabs(number) < 9.2233720368547748e18)) {
    return absl::InvalidArgumentError("an integer does not fit in 64 bits");
  }
  return Value::Int(static_cast<int64_t>(number));
}

absl::StatusOr<Value> Int(Evaluator&, const Value& input, const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("int", arguments, {"default", "base"}));
  const Value if_not = bound[0].value_or(Value::Int(0));
  ASSIGN_OR_RETURN(const int64_t base, IntArgument("int", bound[1], 10));
  if (input.is_undefined()) return UndefinedError(input);
  if (input.is_integral()) return Value::Int(input.as_int());
  if (input.is_float()) {
    // Jinja2 does not catch the exception that int(inf) raises, so the default value is not used.
    if (std::isinf(input.as_float()))
      return absl::InvalidArgumentError("cannot convert float infinity to integer");
    return FromFloat(input.as_float(), if_not);
  }
  if (!input.is_string()) return if_not;
  int64_t number = 0;
  switch (ParseInt(input.str(), base, &number)) {
    case Parsed::kYes:
      return Value::Int(number);
    case Parsed::kTooLarge:
      return absl::InvalidArgumentError("an integer does not fit in 64 bits");
    case Parsed::kNo:
      break;
  }
  const std::optional<double> as_float = ParseFloat(input.str());
  return as_float ? FromFloat(*as_float, if_not) : if_not;
}

absl::StatusOr<Value> Float(Evaluator&, const Value& input, const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("float", arguments, {"default"}));
  if (input.is_undefined()) return UndefinedError(input);
  if (input.is_number()) return Value::Float(input.as_float());
  if (input.is_string()) {
    if (const std::optional<double> number = ParseFloat(input.str())) return Value::Float(*number);
  }
  return bound[0].value_or(Value::Float(0.0));
}

absl::StatusOr<Value> Abs(Evaluator&, const Value& input, const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("abs", arguments, {}).status());
  if (input.is_float()) return Value::Float(std::fabs(input.as_float()));
  if (input.is_integral() && input.as_int() >= 0) return Value::Int(input.as_int());
  return Negate(UnaryOp::kNegate, input);
}

absl::StatusOr<Value> Round(Evaluator&, const Value& input, const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("round", arguments, {"precision", "method"}));
  ASSIGN_OR_RETURN(const int64_t precision, IntArgument("round", bound[0], 0));
  ASSIGN_OR_RETURN(const std::string method, StringArgument("round", bound[1], "common"));
  if (input.is_undefined()) return UndefinedError(input);
  if (!input.is_number())
    return absl::InvalidArgumentError(
        absl::StrFormat("round: want a number, got %s", input.TypeName()));
  if (precision < 0 || precision > 300)
    return absl::InvalidArgumentError("round: want a precision of 0 to 300");
  const double number = input.as_float();
  if (method == "common") {
    if (input.is_integral()) return Value::Int(input.as_int());
    if (!std::isfinite(number)) return input;
    // Like Python, rounds the exact value to `precision` decimals, ties to even.
    return Value::Float(
        std::strtod(absl::StrFormat("%.*f", static_cast<int>(precision), number).c_str(), nullptr));
  }
  if (method != "ceil" && method != "floor") {
    return absl::InvalidArgumentError("round: method must be common, ceil or floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = number * scale;
  const double whole = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  if (!std::isfinite(whole)) return absl::InvalidArgumentError("round: the number is out of range");
  return Value::Float((whole == 0 ? 0.0 : whole) / scale);
}

absl::StatusOr<Value> Default(Evaluator&, const Value& input, const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("default", arguments, {"default_value", "boolean"}));
  const bool also_false = bound[1] && bound[1]->Truthy();
  if (!input.is_undefined() && !(also_false && !input.Truthy())) return input;
  return bound[0].value_or(Value::String(""));
}

}  // namespace

std::span<const Filter> NumberFilters() {
  static constexpr Filter kFilters[] = {
      {"abs", Abs},     {"d", Default}, {"default", Default},
      {"float", Float}, {"int", Int},   {"round", Round},
  };
  return kFilters;
}

}  // namespace quire::jinja
