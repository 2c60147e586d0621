#include "base/flags/flag_set.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

#include "base/check.h"
#include "base/edit_distance.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace quire::base {
namespace {

constexpr size_t kHelpColumn = 36;
constexpr size_t kHelpWidth = 100;

std::string Underscored(std::string_view name) {
  std::string out(name);
  std::ranges::replace(out, '-', '_');
  return out;
}

// Wraps each line of `text` at kHelpWidth columns. All lines of the result except the first are
// indented by `indent` blanks. The blanks at the start of a line of `text` are kept.
std::string Wrap(std::string_view text, size_t indent) {
  std::string out;
  for (const absl::string_view line : absl::StrSplit(ToAbsl(text), '\n')) {
    if (line.data() != text.data()) absl::StrAppend(&out, "\n", std::string(indent, ' '));
    const size_t blanks = std::min(line.find_first_not_of(' '), line.size());
    out.append(blanks, ' ');
    size_t column = indent + blanks;
    bool begun = false;
    for (const absl::string_view word : absl::StrSplit(line.substr(blanks), ' ')) {
      if (begun && column + 1 + word.size() > kHelpWidth) {
        absl::StrAppend(&out, "\n", std::string(indent, ' '));
        column = indent;
      } else if (begun) {
        out += ' ';
        ++column;
      }
      begun = true;
      absl::StrAppend(&out, word);
      column += word.size();
    }
  }
  return out;
}

// Returns one entry of --help: `left` in the left column, and `help` in the right column.
std::string Entry(std::string left, std::string_view help) {
  left += left.size() + 1 < kHelpColumn ? std::string(kHelpColumn - left.size(), ' ')
                                        : "\n" + std::string(kHelpColumn, ' ');
  return absl::StrCat(left, Wrap(help, kHelpColumn), "\n");
}

}  // namespace

FlagSet::FlagSet(std::string usage, std::string summary)
    : usage_(std::move(usage)), summary_(std::move(summary)) {}

void FlagSet::Section(std::string title) { group_ = std::move(title); }

void FlagSet::Add(Flag flag) {
  flag.group = group_;
  flags_.push_back(std::move(flag));
}

void FlagSet::Add(std::string name, std::string value_name, std::string help, Setter set) {
  Add(Flag{.name = std::move(name),
           .value_name = std::move(value_name),
           .help = std::move(help),
           .set = std::move(set)});
}

void FlagSet::AddSwitch(std::string name, std::string help, bool* value) {
  AddSwitch(std::move(name), std::move(help), SetterOf(value));
}

void FlagSet::AddSwitch(std::string name, std::string help, Setter set) {
  Add(std::move(name), "", std::move(help), std::move(set));
}

void FlagSet::AddOperand(std::string name, std::string help, std::string* value) {
  operands_.push_back({std::move(name), std::move(help), value});
}

void FlagSet::AddHabits(std::string flag, std::initializer_list<std::string_view> names) {
  QUIRE_CHECK(Find(flag) != nullptr) << flag;
  for (const std::string_view name : names) habits_.push_back({std::string(name), flag});
}

absl::Status FlagSet::Unknown(std::string_view given, std::string_view name) const {
  const std::string underscored = Underscored(name);
  const auto habit = std::ranges::find(habits_, underscored, &Habit::name);
  if (habit != habits_.end()) {
    const Flag& flag = *Find(habit->flag);
    return absl::InvalidArgumentError(absl::StrFormat("%s: unknown flag; use --%s%s%s", given,
                                                      flag.name, flag.value_name.empty() ? "" : " ",
                                                      flag.value_name));
  }
  const std::string_view nearest = Nearest(name);
  return absl::InvalidArgumentError(
      nearest.empty() ? absl::StrFormat("%s: unknown flag; see --help", given)
                      : absl::StrFormat("%s: unknown flag; did you mean --%s?", given, nearest));
}

absl::Status FlagSet::TakeOperand(const std::string& argument) {
  if (num_operands_ < operands_.size()) {
    *operands_[num_operands_++].value = argument;
    return absl::OkStatus();
  }
  std::string cure;
  if (!for_operand_.empty()) {
    const char* quote = !argument.empty() && argument.find(' ') == argument.npos ? "" : "\"";
    cure = absl::StrCat("; did you mean --", for_operand_, " ", quote, argument, quote, "?");
  } else if (operands_.empty()) {
    cure = ": every argument is a --flag";
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("unexpected argument \"%s\"%s", argument, cure));
}

absl::StatusOr<std::vector<Assignment>> FlagSet::Read(const std::vector<std::string>& args) {
  std::vector<Assignment> assignments;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string_view arg = args[i];
    if (arg == "--help" || arg == "-h") {
      help_requested_ = true;
      return assignments;
    }
    if (arg == "--" && !operands_.empty()) {
      for (++i; i < args.size(); ++i) RETURN_IF_ERROR(TakeOperand(args[i]));
      break;
    }
    if (!arg.starts_with("-") || arg == "-") {
      RETURN_IF_ERROR(TakeOperand(args[i]));
      continue;
    }
    const size_t equals = arg.find('=');
    const std::string_view given = arg.substr(0, equals);
    const std::string_view name = given.substr(given.starts_with("--") ? 2 : 1);
    const Flag* flag = given.starts_with("--") ? Find(name) : nullptr;
    if (flag == nullptr) return Unknown(given, name);
    std::string value = "true";
    if (equals != arg.npos) {
      value = arg.substr(equals + 1);
    } else if (!flag->value_name.empty()) {
      // The value is missing when the next argument is a flag or a mistyped flag. For example,
      // "--prompt --seed 1" gives no value to --prompt.
      const auto is_flag = [&](std::string_view next) {
        if (!next.starts_with("--") || next.find(' ') != next.npos) return false;
        const std::string_view next_name = next.substr(2, next.find('=') - 2);
        return next_name == "help" || Find(next_name) != nullptr || !Nearest(next_name).empty();
      };
      if (i + 1 >= args.size() || is_flag(args[i + 1])) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s: want a value: %s %s", given, given, flag->value_name));
      }
      value = args[++i];
    }
    assignments.push_back({flag->name, std::move(value), std::string(given)});
  }
  return assignments;
}

absl::Status FlagSet::Apply(std::span<const Assignment> assignments) {
  for (const Assignment& assignment : assignments) {
    const auto flag = std::ranges::find(flags_, assignment.flag, &Flag::name);
    QUIRE_CHECK(flag != flags_.end()) << assignment.flag;
    if (absl::Status status = flag->set(assignment.value); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(assignment.source, ": ", status.message()));
    }
    flag->is_set = true;
  }
  return absl::OkStatus();
}

absl::Status FlagSet::Parse(const std::vector<std::string>& args) {
  ASSIGN_OR_RETURN(const std::vector<Assignment> assignments, Read(args));
  return help_requested_ ? absl::OkStatus() : Apply(assignments);
}

bool FlagSet::IsSet(std::string_view name) const {
  const Flag* flag = Find(name);
  return flag != nullptr && flag->is_set;
}

const Flag* FlagSet::Find(std::string_view name) const {
  const auto it = std::ranges::find(flags_, Underscored(name), &Flag::name);
  return it == flags_.end() ? nullptr : &*it;
}

std::string_view FlagSet::Nearest(std::string_view name) const {
  std::vector<std::string_view> names;
  for (const Flag& flag : flags_) names.push_back(flag.name);
  return NearestName(Underscored(name), names);
}

std::string FlagSet::Help() const {
  std::string out = absl::StrCat("usage: ", usage_, "\n\n", Wrap(summary_, 0), "\n");
  if (!operands_.empty()) out += '\n';
  for (const Operand& operand : operands_) {
    out += Entry(absl::StrCat("  ", operand.name), operand.help);
  }
  if (!operands_.empty() && !flags_.empty() && flags_[0].group.empty()) out += '\n';
  std::string_view group;
  for (const Flag& flag : flags_) {
    if (flag.group != group) absl::StrAppend(&out, "\n", flag.group, ":\n");
    group = flag.group;
    // Wrap breaks lines only at blanks, so \x1f keeps "(default" and the value on one line. The
    // \x1f becomes a blank below.
    const std::string default_text =
        flag.default_text.empty() ? "" : absl::StrCat(" (default\x1f", flag.default_text, ")");
    std::string entry =
        Entry(absl::StrCat("  --", flag.name, flag.value_name.empty() ? "" : " ", flag.value_name),
              flag.help + default_text);
    std::ranges::replace(entry, '\x1f', ' ');
    out += entry;
  }
  if (!group.empty()) out += '\n';
  out += Entry("  --help", "print this text");
  if (!epilogue_.empty()) absl::StrAppend(&out, "\n", Wrap(epilogue_, 0), "\n");
  return out;
}

}  // namespace quire::base
