#include "client/flags.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/edit_distance.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace quire::client {
namespace {

constexpr size_t kHelpColumn = 36;
constexpr size_t kHelpWidth = 100;

template <typename T>
absl::Status ParseInteger(std::string_view text, const char* wanted, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error == std::errc() && end == text.data() + text.size() && !text.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat("want %s, got \"%s\"", wanted, text));
}

// Breaks `text` into lines of at most `width` columns; lines after the first begin with `indent`
// blanks.
std::string Wrap(std::string_view text, size_t indent, size_t width) {
  std::string out;
  size_t column = indent;
  for (const absl::string_view word : absl::StrSplit(base::ToAbsl(text), ' ')) {
    if (column > indent && column + 1 + word.size() > width) {
      absl::StrAppend(&out, "\n", std::string(indent, ' '));
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    absl::StrAppend(&out, word);
    column += word.size();
  }
  return out;
}

// Wraps each line of `text` by itself.
std::string WrapLines(std::string_view text) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(base::ToAbsl(text), '\n')) {
    lines.push_back(Wrap(base::ToStd(line), 0, kHelpWidth));
  }
  return absl::StrJoin(lines, "\n");
}

}  // namespace

absl::Status ParseValue(std::string_view text, std::string* value) {
  *value = std::string(text);
  return absl::OkStatus();
}

absl::Status ParseValue(std::string_view text, bool* value) {
  if (absl::SimpleAtob(base::ToAbsl(text), value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("want true or false, got \"%s\"", text));
}

absl::Status ParseValue(std::string_view text, int32_t* value) {
  return ParseInteger(text, "a whole number of 32 bits", value);
}

absl::Status ParseValue(std::string_view text, uint32_t* value) {
  return ParseInteger(text, "a whole number from 0 to 4294967295", value);
}

absl::Status ParseValue(std::string_view text, int64_t* value) {
  return ParseInteger(text, "a whole number", value);
}

absl::Status ParseValue(std::string_view text, uint64_t* value) {
  return ParseInteger(text, "a whole number, not negative", value);
}

absl::Status ParseValue(std::string_view text, float* value) {
  if (absl::SimpleAtof(base::ToAbsl(text), value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("want a number, got \"%s\"", text));
}

absl::Status ParseValue(std::string_view text, double* value) {
  if (absl::SimpleAtod(base::ToAbsl(text), value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("want a number, got \"%s\"", text));
}

absl::Status ParseValue(std::string_view text, absl::Duration* value) {
  double seconds = 0;
  if (absl::SimpleAtod(base::ToAbsl(text), &seconds)) {
    *value = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(base::ToAbsl(text), value)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("want a time such as 500ms, 2s or 1m30s, got \"%s\"", text));
  }
  if (*value < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("want a time of at least 0, got \"%s\"", text));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ParseIdList(std::string_view text) {
  std::vector<int32_t> ids;
  for (const absl::string_view field : absl::StrSplit(base::ToAbsl(text), ',')) {
    int32_t id = 0;
    if (!ParseValue(base::ToStd(absl::StripAsciiWhitespace(field)), &id).ok() || id < 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("want token ids such as 1,2,3, got \"%s\"", field));
    }
    ids.push_back(id);
  }
  return ids;
}

FlagSet::FlagSet(std::string usage, std::string summary)
    : usage_(std::move(usage)), summary_(std::move(summary)) {}

void FlagSet::Section(std::string title) { flags_.push_back(Flag{.help = std::move(title)}); }

void FlagSet::Add(std::string name, std::string value_name, std::string help, Setter setter) {
  flags_.push_back(Flag{.name = std::move(name),
                        .value_name = std::move(value_name),
                        .help = std::move(help),
                        .setter = std::move(setter)});
}

void FlagSet::AddSwitch(std::string name, std::string help, bool* value) {
  AddSwitch(std::move(name), std::move(help),
            Setter([value](std::string_view text) { return ParseValue(text, value); }));
}

void FlagSet::AddSwitch(std::string name, std::string help, Setter setter) {
  Add(std::move(name), "", std::move(help), std::move(setter));
  flags_.back().is_switch = true;
}

absl::Status FlagSet::Parse(const std::vector<std::string>& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string_view arg = args[i];
    if (arg == "--help" || arg == "-h") {
      help_requested_ = true;
      return absl::OkStatus();
    }
    if (!arg.starts_with("--")) {
      return absl::InvalidArgumentError(
          absl::StrFormat("unexpected argument \"%s\": every argument is a --flag", arg));
    }
    const size_t equals = arg.find('=');
    const std::string_view name = arg.substr(2, equals == arg.npos ? arg.npos : equals - 2);
    Flag* flag = Find(name);
    if (flag == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrFormat("unknown flag --%s%s", name, Nearest(name)));
    }
    std::string_view value = "true";
    if (equals != arg.npos) {
      value = arg.substr(equals + 1);
    } else if (!flag->is_switch) {
      // A declared flag is not taken as a value: in "--prompt --seed 1" the prompt is missing.
      const bool is_flag = i + 1 < args.size() && args[i + 1].starts_with("--") &&
                           Find(std::string_view(args[i + 1]).substr(2)) != nullptr;
      if (i + 1 >= args.size() || is_flag) {
        return absl::InvalidArgumentError(
            absl::StrFormat("--%s needs a value: --%s %s", name, name, flag->value_name));
      }
      value = args[++i];
    }
    if (absl::Status status = flag->setter(value); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrFormat("--%s: %s", name, status.message()));
    }
    flag->is_set = true;
  }
  return absl::OkStatus();
}

bool FlagSet::IsSet(std::string_view name) const {
  return std::any_of(flags_.begin(), flags_.end(),
                     [&](const Flag& flag) { return flag.name == name && flag.is_set; });
}

std::vector<std::string> FlagSet::names() const {
  std::vector<std::string> names;
  for (const Flag& flag : flags_) {
    if (!flag.name.empty()) names.push_back(flag.name);
  }
  return names;
}

std::string FlagSet::Help() const {
  std::string out = absl::StrCat("usage: ", usage_, "\n\n", WrapLines(summary_), "\n");
  for (const Flag& flag : flags_) {
    if (flag.name.empty()) {
      absl::StrAppend(&out, "\n", flag.help, ":\n");
      continue;
    }
    std::string left = absl::StrCat("  --", flag.name, flag.is_switch ? "" : " ", flag.value_name);
    left += left.size() + 1 < kHelpColumn ? std::string(kHelpColumn - left.size(), ' ')
                                          : "\n" + std::string(kHelpColumn, ' ');
    absl::StrAppend(&out, left, Wrap(flag.help, kHelpColumn, kHelpWidth), "\n");
  }
  return out;
}

FlagSet::Flag* FlagSet::Find(std::string_view name) {
  if (name.empty()) return nullptr;
  const auto it = std::find_if(flags_.begin(), flags_.end(),
                               [&](const Flag& flag) { return flag.name == name; });
  return it == flags_.end() ? nullptr : &*it;
}

std::string FlagSet::Nearest(std::string_view name) const {
  const Flag* nearest = nullptr;
  size_t best = 3;  // with more than two edits it is another word, not a typo
  for (const Flag& flag : flags_) {
    if (flag.name.empty()) continue;
    const size_t distance = base::EditDistance(name, flag.name);
    if (distance < best) {
      best = distance;
      nearest = &flag;
    }
  }
  return nearest == nullptr ? "" : absl::StrCat("; did you mean --", nearest->name, "?");
}

}  // namespace quire::client
