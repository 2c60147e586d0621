#include "server/config/option.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/edit_distance.h"
#include "base/strings.h"

namespace quire::server {
namespace {

constexpr std::string_view kLogLevels[] = {"debug", "info", "warning", "error"};  // by enumerator
constexpr size_t kHelpIndent = 6;
constexpr size_t kHelpWidth = 100;

template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;  // clang 14 does not deduce it

std::string Underscored(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

absl::Status Wrong(std::string_view want, std::string_view got) {
  return absl::InvalidArgumentError(absl::StrFormat("want %s, got \"%s\"", want, got));
}

absl::Status WrongChoice(std::span<const std::string_view> choices, std::string_view got) {
  const auto append = [](std::string* out, std::string_view choice) { out->append(choice); };
  return Wrong(absl::StrJoin(choices, " | ", append), got);
}

std::optional<int64_t> ParseInteger(std::string_view text, int64_t min, int64_t max) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < min || value > max) return std::nullopt;
  return value;
}

template <typename Integer>
absl::Status SetInteger(const Option& option, std::string_view text, Integer* target) {
  const int64_t max = std::min<int64_t>(option.max, std::numeric_limits<Integer>::max());
  const std::optional<int64_t> value = ParseInteger(text, option.min, max);
  if (!value) return Wrong(absl::StrCat("an integer ", option.min, "..", max), text);
  *target = static_cast<Integer>(*value);
  return absl::OkStatus();
}

absl::Status SetDuration(std::string_view text, absl::Duration* target) {
  absl::Duration value;
  if (const auto seconds = ParseInteger(text, 0, std::numeric_limits<int32_t>::max())) {
    value = absl::Seconds(*seconds);
  } else if (!absl::ParseDuration(base::ToAbsl(text), &value) || value < absl::ZeroDuration()) {
    return Wrong("a duration like 30s, 500ms or 1m30s", text);
  }
  *target = value;
  return absl::OkStatus();
}

void AppendWrapped(std::string* out, std::string_view text) {
  size_t column = 0;
  for (const absl::string_view word : absl::StrSplit(base::ToAbsl(text), ' ')) {
    if (column == 0 || column + 1 + word.size() > kHelpWidth) {
      if (column != 0) out->push_back('\n');
      out->append(kHelpIndent, ' ');
      column = kHelpIndent;
    } else {
      out->push_back(' ');
      ++column;
    }
    absl::StrAppend(out, word);
    column += word.size();
  }
  out->push_back('\n');
}

}  // namespace

absl::Status SetOption(const Option& option, std::string_view text) {
  return std::visit(Overloaded{
                        [&](std::string* target) {
                          if (!option.choices.empty() &&
                              std::ranges::find(option.choices, text) == option.choices.end()) {
                            return WrongChoice(option.choices, text);
                          }
                          *target = std::string(text);
                          return absl::OkStatus();
                        },
                        [&](int32_t* target) { return SetInteger(option, text, target); },
                        [&](int64_t* target) { return SetInteger(option, text, target); },
                        [&](absl::Duration* target) { return SetDuration(text, target); },
                        [&](base::LogLevel* target) {
                          const auto it = std::ranges::find(kLogLevels, text);
                          if (it == std::end(kLogLevels)) return WrongChoice(kLogLevels, text);
                          *target = static_cast<base::LogLevel>(it - std::begin(kLogLevels));
                          return absl::OkStatus();
                        },
                    },
                    option.target);
}

std::string FormatOption(const Option& option) {
  return std::visit(Overloaded{
                        [](const std::string* target) { return *target; },
                        [](const absl::Duration* target) { return absl::FormatDuration(*target); },
                        [](const base::LogLevel* target) {
                          return std::string(kLogLevels[static_cast<size_t>(*target)]);
                        },
                        [](const auto* target) { return std::string(absl::StrCat(*target)); },
                    },
                    option.target);
}

std::string EnvironmentName(const Option& option) {
  return absl::StrCat("QUIRE_", absl::AsciiStrToUpper(base::ToAbsl(option.name)));
}

const Option* FindOption(std::span<const Option> options, std::string_view name) {
  const std::string underscored = Underscored(name);
  const auto it = std::ranges::find(options, std::string_view(underscored), &Option::name);
  return it == options.end() ? nullptr : &*it;
}

std::string_view NearestName(std::span<const Option> options, std::string_view name) {
  const std::string underscored = Underscored(name);
  std::string_view nearest;
  size_t distance = 1 + underscored.size() / 3;  // with more edits it is another word, not a typo
  for (const Option& option : options) {
    const size_t d = base::EditDistance(underscored, option.name);
    if (d <= distance && (nearest.empty() || d < distance)) {
      nearest = option.name;
      distance = d;
    }
  }
  return nearest;
}

std::string DescribeOptions(std::span<const Option> options) {
  std::string out;
  std::string_view group;
  for (const Option& option : options) {
    if (option.group != group) {
      group = option.group;
      absl::StrAppend(&out, "\n", base::ToAbsl(group), "\n");
    }
    absl::StrAppend(&out, "  --", base::ToAbsl(option.name), " ");
    if (option.choices.empty()) {
      absl::StrAppend(&out, base::ToAbsl(option.placeholder));
    } else {
      const auto append = [](std::string* o, std::string_view choice) { o->append(choice); };
      absl::StrAppend(&out, absl::StrJoin(option.choices, "|", append));
    }
    const std::string value = FormatOption(option);
    if (!value.empty()) absl::StrAppend(&out, "  (default ", value, ")");
    out.push_back('\n');
    AppendWrapped(&out, option.help);
  }
  return out;
}

}  // namespace quire::server
