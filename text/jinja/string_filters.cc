// Filters that return text.

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "text/jinja/filters.h"
#include "text/jinja/format.h"
#include "text/jinja/methods.h"
#include "text/jinja/text.h"
#include "text/jinja/write.h"

namespace quire::jinja {
namespace {

// Jinja2's soft_str(): returns text unchanged, markup flag included, and str() of any other value.
absl::StatusOr<Value> SoftText(Evaluator& evaluator, const Value& input) {
  if (input.is_string()) {
    if (!evaluator.budget().SpendBytes(2 * static_cast<int64_t>(input.str().size()))) {
      return evaluator.budget().status();
    }
    return input;
  }
  ASSIGN_OR_RETURN(TracedText text, ToText(input, evaluator.budget()));
  return Value::String(std::move(text));
}

template <std::string (*kConvert)(std::string_view)>
absl::StatusOr<Value> Converted(Evaluator& evaluator, const Value& input,
                                const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("filter", arguments, {}).status());
  ASSIGN_OR_RETURN(const Value text, SoftText(evaluator, input));
  return Value::String({kConvert(text.str()), text.text().has_content()}, text.text().markup);
}

// Follows Jinja2's rule: a word begins after a hyphen, white space or an opening bracket.
std::string Title(std::string_view text) {
  std::string out;
  bool at_word = true;
  for (size_t at = 0; at < text.size();) {
    const size_t size = CodePointSize(text, at);
    const std::string_view c = text.substr(at, size);
    const bool separator =
        IsSpace(CodePointAt(text, at)) ||
        (size == 1 && std::string_view("-({[<").find(c) != std::string_view::npos);
    out += separator ? std::string(c) : at_word ? Upper(c) : Lower(c);
    at_word = separator;
    at += size;
  }
  return out;
}

absl::StatusOr<Value> Trim(Evaluator& evaluator, const Value& input,
                           const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("trim", arguments, {"chars"}));
  ASSIGN_OR_RETURN(const Value text, SoftText(evaluator, input));
  if (!bound[0] || bound[0]->is_none()) {
    return Value::Part(text, StripLeft(StripRight(text.str())));
  }
  ASSIGN_OR_RETURN(const std::string chars, StringArgument("trim", bound[0], ""));
  return Value::Part(text, StripLeft(StripRight(text.str(), chars), chars));
}

absl::StatusOr<Value> String(Evaluator& evaluator, const Value& input,
                             const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("string", arguments, {}).status());
  return SoftText(evaluator, input);
}

absl::StatusOr<Value> Safe(Evaluator& evaluator, const Value& input,
                           const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("safe", arguments, {}).status());
  ASSIGN_OR_RETURN(TracedText text, ToText(input, evaluator.budget()));
  return Value::String(std::move(text), true);
}

absl::StatusOr<Value> Escape(Evaluator& evaluator, const Value& input,
                             const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("escape", arguments, {}).status());
  if (input.is_string() && input.text().markup) return input;
  ASSIGN_OR_RETURN(const TracedText text, ToText(input, evaluator.budget()));
  return Value::String(EscapeHtml(text), true);
}

absl::StatusOr<Value> ForceEscape(Evaluator& evaluator, const Value& input,
                                  const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("forceescape", arguments, {}).status());
  ASSIGN_OR_RETURN(const TracedText text, ToText(input, evaluator.budget()));
  return Value::String(EscapeHtml(text), true);
}

absl::StatusOr<Value> Replace(Evaluator& evaluator, const Value& input,
                              const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("replace", arguments, {"old", "new", "count"}, 2));
  Budget& budget = evaluator.budget();
  ASSIGN_OR_RETURN(const TracedText text, ToText(input, budget));
  ASSIGN_OR_RETURN(const TracedText from, ToText(*bound[0], budget));
  ASSIGN_OR_RETURN(const TracedText to, ToText(*bound[1], budget));
  int64_t count = -1;
  if (bound[2] && !bound[2]->is_none()) {
    ASSIGN_OR_RETURN(count, IntArgument("replace", bound[2], -1));
  }
  RETURN_IF_ERROR(PayForReplace(text.bytes, from.bytes, to.bytes, budget));
  return Value::String(ReplaceAll(text, from.bytes, to, count));
}

absl::StatusOr<Value> Join(Evaluator& evaluator, const Value& input,
                           const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("join", arguments, {"d", "attribute"}));
  Budget& budget = evaluator.budget();
  ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(input, budget));
  ASSIGN_OR_RETURN(const TracedText separator,
                   ToText(bound[0].value_or(Value::String("")), budget));
  TracedText out;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (bound[1] && !bound[1]->is_none()) {
      ASSIGN_OR_RETURN(item, LookUpPath(evaluator, item, *bound[1]));
    }
    ASSIGN_OR_RETURN(const TracedText text, ToText(item, budget));
    if (!budget.SpendAppend(out.bytes.size(), separator.bytes.size() + text.bytes.size())) {
      return budget.status();
    }
    if (i > 0) out.Append(separator);
    out.Append(text);
  }
  return Value::String(std::move(out));
}

absl::StatusOr<Value> Indent(Evaluator& evaluator, const Value& input,
                             const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("indent", arguments, {"width", "first", "blank"}));
  if (!input.is_string())
    return absl::InvalidArgumentError(
        absl::StrFormat("indent: want a string, got %s", input.TypeName()));
  TracedText indention;
  if (bound[0] && bound[0]->is_string()) {
    indention = bound[0]->text();
    if (input.text().markup && !bound[0]->text().markup) indention = EscapeHtml(indention);
  } else {
    ASSIGN_OR_RETURN(const int64_t width, IntArgument("indent", bound[0], 4));
    if (!evaluator.budget().SpendBytes(std::max<int64_t>(width, 0)))
      return evaluator.budget().status();
    indention.bytes.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  const bool first = bound[1] && bound[1]->Truthy();
  const bool blank = bound[2] && bound[2]->Truthy();
  // The added newline makes an empty last line count, as in Jinja2.
  TracedText text = input.text();
  text.AppendPlain("\n");
  TracedText out;
  const std::vector<std::string_view> lines = SplitLines(text.bytes);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!evaluator.budget().SpendAppend(out.bytes.size(),
                                        indention.bytes.size() + lines[i].size() + 1)) {
      return evaluator.budget().status();
    }
    if (i > 0) out.AppendPlain("\n");
    if (i == 0 ? first : blank || !lines[i].empty()) out.Append(indention);
    out.Append(text, static_cast<size_t>(lines[i].data() - text.bytes.data()), lines[i].size());
  }
  return Value::String(std::move(out), input.text().markup);
}

absl::StatusOr<Value> Format(Evaluator& evaluator, const Value& input,
                             const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const Value format, SoftText(evaluator, input));
  if (arguments.keyword.empty())
    return PercentFormat(format, Value::Tuple(arguments.positional), evaluator.budget());
  if (!arguments.positional.empty()) {
    return absl::InvalidArgumentError("format: positional and keyword arguments at the same time");
  }
  Dict dict;
  for (const auto& [name, value] : arguments.keyword) dict.SetText(name, value);
  return PercentFormat(format, Value::MakeDict(std::move(dict)), evaluator.budget());
}

absl::StatusOr<Value> Center(Evaluator& evaluator, const Value& input,
                             const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("center", arguments, {"width"}));
  ASSIGN_OR_RETURN(const Value text, SoftText(evaluator, input));
  for (const Method& method : StringMethods()) {
    if (method.name == "center") {
      return method.function(evaluator, text,
                             {.positional = {bound[0].value_or(Value::Int(80))}, .keyword = {}});
    }
  }
  return text;
}

absl::StatusOr<Value> Truncate(Evaluator& evaluator, const Value& input,
                               const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   Bind("truncate", arguments, {"length", "killwords", "end", "leeway"}));
  ASSIGN_OR_RETURN(const int64_t length, IntArgument("truncate", bound[0], 255));
  ASSIGN_OR_RETURN(const std::string end, StringArgument("truncate", bound[2], "..."));
  const bool default_leeway = !bound[3] || bound[3]->is_none();
  ASSIGN_OR_RETURN(const int64_t leeway,
                   IntArgument("truncate", default_leeway ? Value::Int(5) : bound[3], 5));
  if (!input.is_string())
    return absl::InvalidArgumentError(
        absl::StrFormat("truncate: want a string, got %s", input.TypeName()));
  const int64_t end_length = CountCodePoints(end);
  if (length < end_length || leeway < 0)
    return absl::InvalidArgumentError("truncate: the length is too small");
  if (!evaluator.budget().SpendBytes(static_cast<int64_t>(input.str().size() + end.size()))) {
    return evaluator.budget().status();
  }
  if (leeway > input.text().length || input.text().length <= length + leeway) return input;
  TracedText text =
      input.text().Sub(0, CodePointOffsets(input.str())[static_cast<size_t>(length - end_length)]);
  if (!(bound[1] && bound[1]->Truthy())) text = text.Sub(0, text.bytes.rfind(' '));
  text.Append(bound[2] ? TracedText(bound[2]->text()) : TracedText(end));
  return Value::String(std::move(text), input.text().markup);
}

absl::StatusOr<Value> WordCount(Evaluator& evaluator, const Value& input,
                                const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("wordcount", arguments, {}).status());
  ASSIGN_OR_RETURN(const Value text, SoftText(evaluator, input));
  int64_t count = 0;
  bool in_word = false;
  for (const char c : text.str()) {
    // Outside ASCII every character counts as part of a word.
    const auto byte = static_cast<unsigned char>(c);
    const bool word = byte >= 0x80 || absl::ascii_isalnum(byte) || c == '_';
    count += word && !in_word ? 1 : 0;
    in_word = word;
  }
  return Value::Int(count);
}

std::string QuoteUrl(std::string_view text, bool for_query) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool safe = absl::ascii_isalnum(byte) ||
                      std::string_view("_.-~").find(c) != std::string_view::npos ||
                      (c == '/' && !for_query);
    if (safe) {
      out += c;
    } else if (c == ' ' && for_query) {
      out += '+';
    } else {
      absl::StrAppendFormat(&out, "%%%02X", byte);
    }
  }
  return out;
}

absl::StatusOr<Value> UrlEncode(Evaluator& evaluator, const Value& input,
                                const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("urlencode", arguments, {}).status());
  Budget& budget = evaluator.budget();
  std::vector<Value> pairs;
  if (input.is_dict()) {
    for (const auto& [key, value] : input.dict().entries())
      pairs.push_back(Value::Tuple({key, value}));
  } else if (input.is_sequence()) {
    ASSIGN_OR_RETURN(pairs, Iterate(input, budget));
  } else {
    ASSIGN_OR_RETURN(const TracedText text, ToText(input, budget));
    if (!budget.SpendBytes(3 * static_cast<int64_t>(text.bytes.size()))) return budget.status();
    return Value::String({QuoteUrl(text.bytes, false), text.has_content()});
  }
  std::string out;
  bool has_content = false;
  for (const Value& pair : pairs) {
    ASSIGN_OR_RETURN(const std::vector<Value> parts, Iterate(pair, budget));
    if (parts.size() != 2) return absl::InvalidArgumentError("urlencode: want pairs");
    ASSIGN_OR_RETURN(const TracedText key, ToText(parts[0], budget));
    ASSIGN_OR_RETURN(const TracedText value, ToText(parts[1], budget));
    if (!budget.SpendAppend(out.size(), 3 * (key.bytes.size() + value.bytes.size()) + 2))
      return budget.status();
    absl::StrAppend(&out, out.empty() ? "" : "&", QuoteUrl(key.bytes, true), "=",
                    QuoteUrl(value.bytes, true));
    has_content = has_content || key.has_content() || value.has_content();
  }
  return Value::String({std::move(out), has_content});
}

// Hugging Face's tojson, which is json.dumps without HTML escaping.
absl::StatusOr<Value> ToJsonFilter(Evaluator& evaluator, const Value& input,
                                   const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("tojson", arguments,
                                          {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ensure_ascii = bound[0] && bound[0]->Truthy();
  style.sort_keys = bound[3] && bound[3]->Truthy();
  if (bound[1] && !bound[1]->is_none()) {
    style.item_separator = ",";
    if (bound[1]->is_string()) {
      style.indent = bound[1]->text();
    } else {
      ASSIGN_OR_RETURN(const int64_t width, IntArgument("tojson", bound[1], 0));
      if (width > 1000) return absl::InvalidArgumentError("tojson: the indent is too large");
      style.indent = TracedText(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '));
    }
  }
  if (bound[2] && !bound[2]->is_none()) {
    ASSIGN_OR_RETURN(const std::vector<Value> separators, Iterate(*bound[2], evaluator.budget()));
    if (separators.size() != 2) return absl::InvalidArgumentError("tojson: want two separators");
    for (const Value& separator : separators) {
      RETURN_IF_ERROR(StringArgument("tojson", separator, "").status());
    }
    style.item_separator = separators[0].text();
    style.key_separator = separators[1].text();
  }
  ASSIGN_OR_RETURN(TracedText text, ToJson(input, style, evaluator.budget()));
  return Value::String(std::move(text));
}

// The filter from_json. Jinja2 does not have it, but published templates use it.
absl::StatusOr<Value> FromJsonFilter(Evaluator& evaluator, const Value& input,
                                     const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("from_json", arguments, {}).status());
  if (!input.is_string())
    return absl::InvalidArgumentError(
        absl::StrFormat("from_json: want a string, got %s", input.TypeName()));
  if (!evaluator.budget().SpendBytes(static_cast<int64_t>(input.str().size())))
    return evaluator.budget().status();
  // The parser does not recurse, but the code that handles parsed values does. So a value that
  // nests too deep is refused while parsing.
  bool too_deep = false;
  const auto watch = [&](int depth, nlohmann::ordered_json::parse_event_t,
                         nlohmann::ordered_json&) {
    too_deep = too_deep || depth > evaluator.budget().limits().max_value_depth;
    return !too_deep;
  };
  const auto json = nlohmann::ordered_json::parse(input.str(), watch, /*allow_exceptions=*/false);
  if (too_deep || json.is_discarded())
    return absl::InvalidArgumentError("from_json: the text is not JSON");
  return FromJson(json, evaluator.budget(), {}, input.text().has_content());
}

}  // namespace

std::span<const Filter> StringFilters() {
  static constexpr Filter kFilters[] = {
      {"capitalize", Converted<Capitalize>},
      {"center", Center},
      {"e", Escape},
      {"escape", Escape},
      {"forceescape", ForceEscape},
      {"format", Format},
      {"from_json", FromJsonFilter},
      {"indent", Indent},
      {"join", Join},
      {"lower", Converted<Lower>},
      {"replace", Replace},
      {"safe", Safe},
      {"string", String},
      {"title", Converted<Title>},
      {"tojson", ToJsonFilter},
      {"trim", Trim},
      {"truncate", Truncate},
      {"upper", Converted<Upper>},
      {"urlencode", UrlEncode},
      {"wordcount", WordCount},
  };
  return kFilters;
}

}  // namespace quire::jinja
