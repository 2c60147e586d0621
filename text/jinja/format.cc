#include "text/jinja/format.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/jinja/attributes.h"
#include "text/jinja/operators.h"
#include "text/jinja/text.h"
#include "text/jinja/write.h"

namespace quire::jinja {
namespace {

constexpr int64_t kMaxWidth = 10'000;
constexpr int64_t kMaxPrecision = 100;

// One conversion specification, such as "%-08.3f".
struct Spec {
  bool left = false, plus = false, space = false, zero = false, alternate = false;
  int64_t width = 0;
  int64_t precision = -1;  // -1: not given
  char kind = 's';
};

TracedText Pad(TracedText traced, const Spec& spec, bool is_number) {
  const std::string& text = traced.bytes;
  const int64_t missing = spec.width - CountCodePoints(text);
  if (missing <= 0) return traced;
  const auto count = static_cast<size_t>(missing);
  if (spec.left) {
    traced.AppendPlain(std::string(count, ' '));
    return traced;
  }
  if (!is_number || !spec.zero) {
    TracedText padded = std::string(count, ' ');
    padded.Append(traced);
    return padded;
  }
  size_t digits = !text.empty() && (text[0] == '-' || text[0] == '+' || text[0] == ' ') ? 1 : 0;
  if (text.size() > digits + 1 && text[digits] == '0' &&
      absl::ascii_isalpha(static_cast<unsigned char>(text[digits + 1]))) {
    digits += 2;
  }
  return text.substr(0, digits) + std::string(count, '0') + text.substr(digits);
}

std::string Signed(bool negative, const std::string& digits, const Spec& spec) {
  return absl::StrCat(negative ? "-" : spec.plus ? "+" : spec.space ? " " : "", digits);
}

absl::StatusOr<std::string> FormatInt(const Value& value, const Spec& spec) {
  const bool decimal = spec.kind == 'd' || spec.kind == 'i' || spec.kind == 'u';
  if (value.is_undefined()) return UndefinedError(value);
  if (!value.is_integral() && !(decimal && value.is_float())) {
    return absl::InvalidArgumentError(absl::StrFormat("%%%c format: an integer is required, not %s",
                                                      spec.kind, value.TypeName()));
  }
  if (value.is_float() && !(std::fabs(value.as_float()) < 9.2e18)) {
    return absl::InvalidArgumentError("a number does not fit in 64 bits");
  }
  const int64_t number = value.is_float() ? static_cast<int64_t>(value.as_float()) : value.as_int();
  const uint64_t magnitude =
      number < 0 ? ~static_cast<uint64_t>(number) + 1 : static_cast<uint64_t>(number);
  std::string digits = spec.kind == 'x'   ? absl::StrFormat("%x", magnitude)
                       : spec.kind == 'X' ? absl::StrFormat("%X", magnitude)
                       : spec.kind == 'o' ? absl::StrFormat("%o", magnitude)
                                          : absl::StrCat(magnitude);
  if (static_cast<int64_t>(digits.size()) < spec.precision) {
    digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
  }
  if (spec.alternate && !decimal) digits = absl::StrCat("0", std::string(1, spec.kind), digits);
  return Signed(number < 0, digits, spec);
}

absl::StatusOr<std::string> FormatFloat(const Value& value, const Spec& spec) {
  if (value.is_undefined()) return UndefinedError(value);
  if (!value.is_number()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("must be real number, not %s", value.TypeName()));
  }
  const double number = value.as_float();
  const double magnitude = std::fabs(number);
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  std::string digits;
  if (!std::isfinite(number)) {
    digits = std::isnan(number) ? "nan" : "inf";
    if (absl::ascii_isupper(static_cast<unsigned char>(spec.kind))) digits = Upper(digits);
  } else {
    switch (spec.kind) {
      case 'e':
        digits = absl::StrFormat("%.*e", precision, magnitude);
        break;
      case 'E':
        digits = absl::StrFormat("%.*E", precision, magnitude);
        break;
      case 'g':
        digits = absl::StrFormat("%.*g", precision, magnitude);
        break;
      case 'G':
        digits = absl::StrFormat("%.*G", precision, magnitude);
        break;
      default:
        digits = absl::StrFormat("%.*f", precision, magnitude);
    }
  }
  return Signed(std::signbit(number) && !std::isnan(number), digits, spec);
}

absl::StatusOr<TracedText> FormatOne(const Value& value, const Spec& spec, Budget& budget) {
  TracedText text;
  switch (spec.kind) {
    case 's':
    case 'r': {
      ASSIGN_OR_RETURN(text, spec.kind == 's' ? ToText(value, budget) : ToRepr(value, budget));
      if (spec.precision >= 0 && spec.precision < CountCodePoints(text.bytes)) {
        text = text.Sub(0, CodePointOffsets(text.bytes)[static_cast<size_t>(spec.precision)]);
      }
      return Pad(std::move(text), spec, false);
    }
    case 'c':
      if (value.is_string() && value.text().length == 1) return Pad(value.text(), spec, false);
      if (!value.is_int() || value.as_int() < 0 || value.as_int() > 0x10FFFF) {
        return absl::InvalidArgumentError("%c requires an int or one character");
      }
      base::AppendUtf8(static_cast<char32_t>(value.as_int()), text.bytes);
      // The number may be of a content.
      return Pad({std::move(text.bytes), true}, spec, false);
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      ASSIGN_OR_RETURN(text, FormatInt(value, spec));
      return Pad(std::move(text), spec, true);
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G': {
      ASSIGN_OR_RETURN(text, FormatFloat(value, spec));
      return Pad(std::move(text), spec, true);
    }
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("unsupported format character '%c'", spec.kind));
  }
}

class PercentFormatter {
 public:
  PercentFormatter(const Value& format, const Value& arguments, Budget& budget)
      : traced_(format.text()),
        format_(format.str()),
        markup_(format.text().markup),
        arguments_(arguments),
        budget_(budget) {}

  absl::StatusOr<Value> Run() {
    TracedText out;
    while (at_ < format_.size()) {
      const char c = format_[at_++];
      if (c != '%') {
        out.Append(traced_, at_ - 1, 1);
        continue;
      }
      if (at_ < format_.size() && format_[at_] == '%') {
        out.Append(traced_, at_++, 1);
        continue;
      }
      ASSIGN_OR_RETURN(const TracedText piece, Conversion());
      if (!budget_.SpendAppend(out.bytes.size(), piece.bytes.size())) return budget_.status();
      out.Append(piece);
    }
    const bool all_used = arguments_.is_sequence(SequenceType::kTuple)
                              ? next_ == arguments_.items().size()
                              : next_ == 1 || arguments_.is_dict() || arguments_.is_sequence();
    if (!all_used)
      return absl::InvalidArgumentError("not all arguments converted during string formatting");
    return Value::String(std::move(out), markup_);
  }

 private:
  absl::StatusOr<Value> NextArgument() {
    if (arguments_.is_sequence(SequenceType::kTuple)) {
      if (next_ < arguments_.items().size()) return arguments_.items()[next_++];
    } else if (next_++ == 0) {
      return arguments_;
    }
    return absl::InvalidArgumentError("not enough arguments for format string");
  }

  absl::StatusOr<int64_t> Number(int64_t max) {
    if (at_ < format_.size() && format_[at_] == '*') {
      ++at_;
      ASSIGN_OR_RETURN(const Value value, NextArgument());
      if (!value.is_int() || value.as_int() < 0 || value.as_int() > max) {
        return absl::InvalidArgumentError("* wants a small int");
      }
      return value.as_int();
    }
    int64_t number = 0;
    while (at_ < format_.size() && format_[at_] >= '0' && format_[at_] <= '9') {
      number = number * 10 + (format_[at_++] - '0');
      if (number > max) return absl::InvalidArgumentError("a width or precision is too large");
    }
    return number;
  }

  absl::StatusOr<TracedText> Conversion() {
    Spec spec;
    std::optional<Value> named;
    if (at_ < format_.size() && format_[at_] == '(') {
      const size_t close = format_.find(')', at_);
      if (close == std::string_view::npos)
        return absl::InvalidArgumentError("incomplete format key");
      if (!arguments_.is_dict()) return absl::InvalidArgumentError("format requires a mapping");
      const Value* value = arguments_.dict().Find(format_.substr(at_ + 1, close - at_ - 1));
      if (value == nullptr) return absl::InvalidArgumentError("a key of the format is missing");
      named = *value;
      at_ = close + 1;
    }
    for (; at_ < format_.size(); ++at_) {
      const char c = format_[at_];
      if (c == '-')
        spec.left = true;
      else if (c == '+')
        spec.plus = true;
      else if (c == ' ')
        spec.space = true;
      else if (c == '0')
        spec.zero = true;
      else if (c == '#')
        spec.alternate = true;
      else
        break;
    }
    ASSIGN_OR_RETURN(spec.width, Number(kMaxWidth));
    if (at_ < format_.size() && format_[at_] == '.') {
      ++at_;
      ASSIGN_OR_RETURN(spec.precision, Number(kMaxPrecision));
    }
    if (at_ >= format_.size()) return absl::InvalidArgumentError("incomplete format");
    spec.kind = format_[at_++];
    Value value;
    if (named) {
      value = *named;
    } else {
      ASSIGN_OR_RETURN(value, NextArgument());
    }
    ASSIGN_OR_RETURN(const TracedText text, FormatOne(value, spec, budget_));
    const bool escape = markup_ && !(value.is_string() && value.text().markup);
    return escape ? EscapeHtml(text) : text;
  }

  const TracedText& traced_;
  const std::string_view format_;  // the bytes of traced_
  const bool markup_;
  const Value& arguments_;
  Budget& budget_;
  size_t at_ = 0;
  size_t next_ = 0;  // the number of positional arguments already taken
};

// Returns the value of a field such as "0.name[key]".
absl::StatusOr<Value> Field(Evaluator& evaluator, std::string_view field,
                            const CallArguments& arguments, int64_t* automatic) {
  const size_t name_end = std::min(field.find_first_of(".["), field.size());
  const std::string name(field.substr(0, name_end));
  std::optional<Value> found;
  int64_t index = 0;
  if (name.empty() || absl::SimpleAtoi(name, &index)) {
    if (name.empty()) index = (*automatic)++;
    if (index >= 0 && index < static_cast<int64_t>(arguments.positional.size())) {
      found = arguments.positional[static_cast<size_t>(index)];
    }
  } else {
    for (const auto& [keyword, argument] : arguments.keyword) {
      if (keyword == name) found = argument;
    }
  }
  if (!found) return absl::InvalidArgumentError(absl::StrCat("format: no argument '", name, "'"));
  Value value = *std::move(found);
  for (size_t at = name_end; at < field.size();) {
    if (field[at] == '.') {
      const size_t end = std::min(field.find_first_of(".[", at + 1), field.size());
      ASSIGN_OR_RETURN(value, GetAttribute(evaluator, value, field.substr(at + 1, end - at - 1)));
      at = end;
    } else {
      const size_t close = field.find(']', at);
      if (field[at] != '[' || close == std::string_view::npos)
        return absl::InvalidArgumentError("format: bad field");
      const std::string key(field.substr(at + 1, close - at - 1));
      int64_t number = 0;
      const Value item = absl::SimpleAtoi(key, &number) ? Value::Int(number) : Value::String(key);
      ASSIGN_OR_RETURN(value, GetItem(evaluator, value, item));
      at = close + 1;
    }
  }
  return value;
}

}  // namespace

absl::StatusOr<Value> PercentFormat(const Value& format, const Value& arguments, Budget& budget) {
  if (!budget.SpendBytes(static_cast<int64_t>(format.str().size()))) return budget.status();
  return PercentFormatter(format, arguments, budget).Run();
}

absl::StatusOr<Value> BraceFormat(Evaluator& evaluator, const Value& format,
                                  const CallArguments& arguments) {
  Budget& budget = evaluator.budget();
  const std::string_view text = format.str();
  const bool markup = format.text().markup;
  if (!budget.SpendBytes(static_cast<int64_t>(text.size()))) return budget.status();
  TracedText out;
  int64_t automatic = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at++];
    if (c != '{' && c != '}') {
      out.Append(format.text(), at - 1, 1);
      continue;
    }
    if (at < text.size() && text[at] == c) {
      out.Append(format.text(), at - 1, 1);
      ++at;
      continue;
    }
    const size_t close = text.find('}', at);
    if (c == '}' || close == std::string_view::npos)
      return absl::InvalidArgumentError("format: single brace in the text");
    std::string_view field = text.substr(at, close - at);
    at = close + 1;
    if (field.find(':') != std::string_view::npos || field.find('{') != std::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrFormat("format: the field '{%s}' is not supported", field));
    }
    bool repr = false;
    if (const size_t bang = field.find('!'); bang != std::string_view::npos) {
      const std::string_view conversion = field.substr(bang + 1);
      if (conversion != "r" && conversion != "s")
        return absl::InvalidArgumentError("format: bad conversion");
      repr = conversion == "r";
      field = field.substr(0, bang);
    }
    ASSIGN_OR_RETURN(const Value value, Field(evaluator, field, arguments, &automatic));
    ASSIGN_OR_RETURN(TracedText piece, repr ? ToRepr(value, budget) : ToText(value, budget));
    if (markup && !(value.is_string() && value.text().markup)) piece = EscapeHtml(piece);
    if (!budget.SpendAppend(out.bytes.size(), piece.bytes.size())) return budget.status();
    out.Append(piece);
  }
  return Value::String(std::move(out), markup);
}

absl::Status PayForReplace(std::string_view text, std::string_view from, std::string_view to,
                           Budget& budget) {
  if (to.size() <= from.size()) return absl::OkStatus();
  size_t count = from.empty() ? text.size() + 1 : 0;
  if (!from.empty()) {
    for (size_t at = text.find(from); at != std::string_view::npos;
         at = text.find(from, at + from.size()))
      ++count;
  }
  return budget.SpendBytes(static_cast<int64_t>(count * (to.size() - from.size())))
             ? absl::OkStatus()
             : budget.status();
}

}  // namespace quire::jinja
