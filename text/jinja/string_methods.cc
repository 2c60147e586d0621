// Methods of str.

#include <algorithm>
#include <array>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "text/jinja/format.h"
#include "text/jinja/methods.h"
#include "text/jinja/text.h"
#include "text/jinja/write.h"

namespace quire::jinja {
namespace {

constexpr size_t kNone = std::string_view::npos;

// Spends the cost of a method whose time is proportional to the length of `self`.
absl::Status Pay(Evaluator& evaluator, const Value& self) {
  if (evaluator.budget().SpendBytes(2 * static_cast<int64_t>(self.str().size())))
    return absl::OkStatus();
  return evaluator.budget().status();
}

Value Like(const Value& self, TracedText text) {
  return Value::String(std::move(text), self.text().markup);
}

template <std::string (*kConvert)(std::string_view)>
absl::StatusOr<Value> Converted(Evaluator& evaluator, const Value& self,
                                const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("a str method", arguments, {}).status());
  RETURN_IF_ERROR(Pay(evaluator, self));
  return Like(self, {kConvert(self.str()), self.text().has_content()});
}

std::string SwapCase(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t size = CodePointSize(text, at);
    const std::string_view c = text.substr(at, size);
    out += IsUpper(c) ? Lower(c) : Upper(c);
    at += size;
  }
  return out;
}

template <bool (*kHolds)(std::string_view)>
absl::StatusOr<Value> Predicate(Evaluator& evaluator, const Value& self,
                                const CallArguments& arguments) {
  RETURN_IF_ERROR(Bind("a str method", arguments, {}).status());
  RETURN_IF_ERROR(Pay(evaluator, self));
  return Value::Bool(kHolds(self.str()));
}

bool AllSpace(std::string_view text) { return !text.empty() && StripLeft(text).empty(); }
bool AllAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

template <bool kLeft, bool kRight>
absl::StatusOr<Value> Strip(Evaluator& evaluator, const Value& self,
                            const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("strip", arguments, {""}));
  RETURN_IF_ERROR(Pay(evaluator, self));
  std::string_view text = self.str();
  if (!bound[0] || bound[0]->is_none()) {
    if (kLeft) text = StripLeft(text);
    if (kRight) text = StripRight(text);
  } else {
    ASSIGN_OR_RETURN(const std::string chars, StringArgument("strip", bound[0], ""));
    if (!evaluator.budget().Spend(static_cast<int64_t>(chars.size())))
      return evaluator.budget().status();
    if (kLeft) text = StripLeft(text, chars);
    if (kRight) text = StripRight(text, chars);
  }
  return Value::Part(self, text);
}

// Splits at white space; at most `max` times, unless `max` is negative.
std::vector<std::string_view> SplitSpace(std::string_view text, int64_t max, bool from_right) {
  std::vector<std::string_view> parts;
  text = from_right ? StripRight(text) : StripLeft(text);
  while (!text.empty()) {
    if (max >= 0 && static_cast<int64_t>(parts.size()) == max) {
      parts.push_back(from_right ? StripLeft(StripRight(text)).empty() ? text : StripRight(text)
                                 : text);
      break;
    }
    size_t cut = from_right ? text.size() : 0;
    if (from_right) {
      // Finds the last white space character, by walking back over whole characters.
      while (cut > 0) {
        size_t at = cut - 1;
        while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
        if (IsSpace(CodePointAt(text, at))) break;
        cut = at;
      }
      parts.push_back(text.substr(cut));
      text = StripRight(text.substr(0, cut));
    } else {
      while (cut < text.size() && !IsSpace(CodePointAt(text, cut))) cut += CodePointSize(text, cut);
      parts.push_back(text.substr(0, cut));
      text = StripLeft(text.substr(cut));
    }
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> SplitBy(std::string_view text, std::string_view by, int64_t max,
                                      bool from_right) {
  std::vector<std::string_view> parts;
  while (max < 0 || static_cast<int64_t>(parts.size()) < max) {
    const size_t at = from_right ? text.rfind(by) : text.find(by);
    if (at == kNone) break;
    parts.push_back(from_right ? text.substr(at + by.size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + by.size());
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

absl::StatusOr<Value> ToList(Evaluator& evaluator, const Value& self,
                             const std::vector<std::string_view>& parts, SequenceType type) {
  if (!evaluator.budget().SpendValues(std::ssize(parts), kTextValueBytes)) {
    return evaluator.budget().status();
  }
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.push_back(Value::Part(self, part));
  return Value::List(std::move(items), type);
}

template <bool kFromRight>
absl::StatusOr<Value> Split(Evaluator& evaluator, const Value& self,
                            const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("split", arguments, {"sep", "maxsplit"}));
  ASSIGN_OR_RETURN(const int64_t max, IntArgument("split", bound[1], -1));
  RETURN_IF_ERROR(Pay(evaluator, self));
  if (!evaluator.budget().Spend(static_cast<int64_t>(self.str().size())))
    return evaluator.budget().status();
  if (!bound[0] || bound[0]->is_none()) {
    return ToList(evaluator, self, SplitSpace(self.str(), max, kFromRight), SequenceType::kList);
  }
  ASSIGN_OR_RETURN(const std::string by, StringArgument("split", bound[0], ""));
  if (by.empty()) return absl::InvalidArgumentError("empty separator");
  return ToList(evaluator, self, SplitBy(self.str(), by, max, kFromRight), SequenceType::kList);
}

absl::StatusOr<Value> SplitLinesMethod(Evaluator& evaluator, const Value& self,
                                       const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("splitlines", arguments, {"keepends"}));
  RETURN_IF_ERROR(Pay(evaluator, self));
  if (!evaluator.budget().Spend(static_cast<int64_t>(self.str().size())))
    return evaluator.budget().status();
  return ToList(evaluator, self, SplitLines(self.str(), bound[0] && bound[0]->Truthy()),
                SequenceType::kList);
}

template <bool kFromRight>
absl::StatusOr<Value> Partition(Evaluator& evaluator, const Value& self,
                                const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("partition", arguments, {""}, 1));
  ASSIGN_OR_RETURN(const std::string by, StringArgument("partition", bound[0], ""));
  if (by.empty()) return absl::InvalidArgumentError("empty separator");
  RETURN_IF_ERROR(Pay(evaluator, self));
  const std::string_view text = self.str();
  const size_t at = kFromRight ? text.rfind(by) : text.find(by);
  if (at == kNone) {
    return ToList(evaluator, self,
                  kFromRight ? std::vector<std::string_view>{"", "", text}
                             : std::vector<std::string_view>{text, "", ""},
                  SequenceType::kTuple);
  }
  return ToList(evaluator, self,
                {text.substr(0, at), text.substr(at, by.size()), text.substr(at + by.size())},
                SequenceType::kTuple);
}

// Returns the part of the text between the code points `start` and `end`. Both have the same
// meaning as in Python's find and startswith. Returns nothing when `start` is after `end` or after
// the end of the text. Sets *first to `start`, with a negative `start` resolved.
absl::StatusOr<std::optional<std::string_view>> Window(const Value& self,
                                                       const std::optional<Value>& start,
                                                       const std::optional<Value>& end,
                                                       int64_t* first) {
  const auto given = [](const std::optional<Value>& v) {
    return v && v->is_none() ? std::nullopt : v;
  };
  const int64_t length = self.text().length;
  ASSIGN_OR_RETURN(int64_t begin, IntArgument("start", given(start), 0));
  ASSIGN_OR_RETURN(int64_t last, IntArgument("end", given(end), length));
  begin = begin < 0 ? std::max<int64_t>(begin + length, 0) : begin;
  last = std::min(last < 0 ? last + length : last, length);
  *first = begin;
  if (begin > last) return std::optional<std::string_view>();
  const std::string_view text = self.str();
  if (begin == 0 && last == length) return std::optional<std::string_view>(text);
  const std::vector<size_t> offsets = CodePointOffsets(text);
  const size_t from = offsets[static_cast<size_t>(begin)];
  return std::optional<std::string_view>(
      text.substr(from, offsets[static_cast<size_t>(last)] - from));
}

template <bool kAtEnd>
absl::StatusOr<Value> StartsOrEndsWith(Evaluator& evaluator, const Value& self,
                                       const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("startswith", arguments, {"", "", ""}, 1));
  std::vector<Value> affixes = {*bound[0]};
  if (bound[0]->is_sequence(SequenceType::kTuple)) affixes = bound[0]->items();
  if (bound[1] || bound[2]) RETURN_IF_ERROR(Pay(evaluator, self));
  int64_t unused = 0;
  ASSIGN_OR_RETURN(const auto text, Window(self, bound[1], bound[2], &unused));
  for (const Value& affix : affixes) {
    ASSIGN_OR_RETURN(const std::string what, StringArgument("startswith", affix, ""));
    if (!evaluator.budget().SpendBytes(static_cast<int64_t>(what.size())))
      return evaluator.budget().status();
    if (text && (kAtEnd ? text->ends_with(what) : text->starts_with(what)))
      return Value::Bool(true);
  }
  return Value::Bool(false);
}

enum class Search { kFind, kRFind, kIndex, kRIndex, kCount };

template <Search kKind>
absl::StatusOr<Value> Find(Evaluator& evaluator, const Value& self,
                           const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("find", arguments, {"", "", ""}, 1));
  ASSIGN_OR_RETURN(const std::string what, StringArgument("find", bound[0], ""));
  RETURN_IF_ERROR(Pay(evaluator, self));
  int64_t first = 0;
  ASSIGN_OR_RETURN(const auto window, Window(self, bound[1], bound[2], &first));
  if (kKind == Search::kCount) {
    if (!window) return Value::Int(0);
    if (what.empty()) return Value::Int(CountCodePoints(*window) + 1);
    int64_t count = 0;
    for (size_t at = window->find(what); at != kNone; at = window->find(what, at + what.size()))
      ++count;
    return Value::Int(count);
  }
  constexpr bool kFromRight = kKind == Search::kRFind || kKind == Search::kRIndex;
  const size_t at = !window ? kNone : kFromRight ? window->rfind(what) : window->find(what);
  if (at != kNone) return Value::Int(first + CountCodePoints(window->substr(0, at)));
  if (kKind == Search::kFind || kKind == Search::kRFind) return Value::Int(-1);
  return absl::InvalidArgumentError("substring not found");
}

absl::StatusOr<Value> Replace(Evaluator& evaluator, const Value& self,
                              const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("replace", arguments, {"", "", ""}, 2));
  ASSIGN_OR_RETURN(const std::string from, StringArgument("replace", bound[0], ""));
  RETURN_IF_ERROR(StringArgument("replace", bound[1], "").status());
  ASSIGN_OR_RETURN(const int64_t count, IntArgument("replace", bound[2], -1));
  TracedText to = bound[1]->text();
  if (self.text().markup && !bound[1]->text().markup) to = EscapeHtml(to);
  RETURN_IF_ERROR(Pay(evaluator, self));
  RETURN_IF_ERROR(PayForReplace(self.str(), from, to.bytes, evaluator.budget()));
  return Like(self, ReplaceAll(self.text(), from, to, count));
}

absl::StatusOr<Value> Join(Evaluator& evaluator, const Value& self,
                           const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("join", arguments, {""}, 1));
  ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(*bound[0], evaluator.budget()));
  TracedText out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_string()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "sequence item %d: expected str instance, %s found", i, items[i].TypeName()));
    }
    // Escaping turns one byte into at most six bytes.
    if (!evaluator.budget().SpendAppend(out.bytes.size(),
                                        self.str().size() + 6 * items[i].str().size())) {
      return evaluator.budget().status();
    }
    if (i > 0) out.Append(self.text());
    const bool escape = self.text().markup && !items[i].text().markup;
    out.Append(escape ? EscapeHtml(items[i].text()) : TracedText(items[i].text()));
  }
  return Like(self, std::move(out));
}

enum class Align { kLeft, kRight, kCenter };

template <Align kAlign>
absl::StatusOr<Value> Justify(Evaluator& evaluator, const Value& self,
                              const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("ljust", arguments, {"", ""}, 1));
  ASSIGN_OR_RETURN(const int64_t width, IntArgument("ljust", bound[0], 0));
  ASSIGN_OR_RETURN(const std::string fill, StringArgument("ljust", bound[1], " "));
  if (CountCodePoints(fill) != 1)
    return absl::InvalidArgumentError("the fill character must be one character");
  const int64_t pad = width - self.text().length;
  if (pad <= 0) return self;
  if (pad > evaluator.budget().limits().max_output_bytes ||
      !evaluator.budget().SpendBytes(pad * 4)) {
    return absl::InvalidArgumentError("the width is too large");
  }
  const int64_t left = kAlign == Align::kLeft    ? 0
                       : kAlign == Align::kRight ? pad
                                                 : pad / 2 + (pad & width & 1);
  const TracedText filler = bound[1] ? TracedText(bound[1]->text()) : TracedText(fill);
  TracedText out;
  for (int64_t i = 0; i < left; ++i) out.Append(filler);
  out.Append(self.text());
  for (int64_t i = left; i < pad; ++i) out.Append(filler);
  return Like(self, std::move(out));
}

absl::StatusOr<Value> ZFill(Evaluator& evaluator, const Value& self,
                            const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("zfill", arguments, {""}, 1));
  ASSIGN_OR_RETURN(const int64_t width, IntArgument("zfill", bound[0], 0));
  const int64_t pad = width - self.text().length;
  if (pad <= 0) return self;
  if (!evaluator.budget().SpendBytes(pad)) return evaluator.budget().status();
  const size_t sign = self.str().starts_with("-") || self.str().starts_with("+") ? 1 : 0;
  TracedText out = self.text().Sub(0, sign);
  out.AppendPlain(std::string(static_cast<size_t>(pad), '0'));
  out.Append(self.text(), sign);
  return Like(self, std::move(out));
}

template <bool kAtEnd>
absl::StatusOr<Value> RemoveAffix(Evaluator& evaluator, const Value& self,
                                  const CallArguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, Bind("removeprefix", arguments, {""}, 1));
  ASSIGN_OR_RETURN(const std::string affix, StringArgument("removeprefix", bound[0], ""));
  RETURN_IF_ERROR(Pay(evaluator, self));
  std::string_view text = self.str();
  if (kAtEnd && text.ends_with(affix)) text.remove_suffix(affix.size());
  if (!kAtEnd && text.starts_with(affix)) text.remove_prefix(affix.size());
  return Value::Part(self, text);
}

absl::StatusOr<Value> Format(Evaluator& evaluator, const Value& self,
                             const CallArguments& arguments) {
  return BraceFormat(evaluator, self, arguments);
}

}  // namespace

std::span<const Method> StringMethods() {
  static constexpr Method kMethods[] = {
      {"capitalize", Converted<Capitalize>},
      {"center", Justify<Align::kCenter>},
      {"count", Find<Search::kCount>},
      {"endswith", StartsOrEndsWith<true>},
      {"find", Find<Search::kFind>},
      {"format", Format},
      {"index", Find<Search::kIndex>},
      {"isascii", Predicate<AllAscii>},
      {"islower", Predicate<IsLower>},
      {"isspace", Predicate<AllSpace>},
      {"isupper", Predicate<IsUpper>},
      {"join", Join},
      {"ljust", Justify<Align::kLeft>},
      {"lower", Converted<Lower>},
      {"lstrip", Strip<true, false>},
      {"partition", Partition<false>},
      {"removeprefix", RemoveAffix<false>},
      {"removesuffix", RemoveAffix<true>},
      {"replace", Replace},
      {"rfind", Find<Search::kRFind>},
      {"rindex", Find<Search::kRIndex>},
      {"rjust", Justify<Align::kRight>},
      {"rpartition", Partition<true>},
      {"rsplit", Split<true>},
      {"rstrip", Strip<false, true>},
      {"split", Split<false>},
      {"splitlines", SplitLinesMethod},
      {"startswith", StartsOrEndsWith<false>},
      {"strip", Strip<true, true>},
      {"swapcase", Converted<SwapCase>},
      {"title", Converted<TitleWords>},
      {"upper", Converted<Upper>},
      {"zfill", ZFill},
  };
  return kMethods;
}

std::span<const std::string_view> LackingStringMethods() {
  static constexpr std::string_view kNames[] = {
      "casefold", "encode",       "expandtabs", "format_map",  "isalnum", "isalpha",   "isdecimal",
      "isdigit",  "isidentifier", "isnumeric",  "isprintable", "istitle", "maketrans", "translate"};
  return kNames;
}

}  // namespace quire::jinja
