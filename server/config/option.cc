#include "server/config/option.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace quire::server {
namespace {

using base::Flag;

const std::vector<std::string>& LogLevels() {  // indexed by base::LogLevel
  static const auto* const kNames =
      new std::vector<std::string>{"debug", "info", "warning", "error"};
  return *kNames;
}

// Sets `flag.set` and `flag.default_text` as the type of `target` requires. If the option has a
// list of choices, --help shows the choices as the flag's value.
void SetTarget(const Option& option, std::string* target, Flag& flag) {
  flag.default_text = *target;
  flag.set =
      option.choices.empty() ? base::SetterOf(target) : base::ChoiceSetter(target, option.choices);
  if (!option.choices.empty()) flag.value_name = absl::StrJoin(option.choices, "|");
}

template <typename Integer>
void SetTarget(const Option& option, Integer* target, Flag& flag) {
  flag.default_text = absl::StrCat(*target);
  flag.set = base::IntegerSetter(target, option.min, option.max);
}

void SetTarget(const Option& option, double* target, Flag& flag) {
  flag.default_text = absl::StrCat(*target);
  flag.set = [target, min = option.min, max = option.max](std::string_view text) {
    double value = 0.0;
    const bool is_number = absl::SimpleAtod(base::ToAbsl(text), &value);
    if (!is_number || !(value > static_cast<double>(min) && value <= static_cast<double>(max))) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "want a number above %d and at most %d, got \"%s\"", min, max, std::string(text)));
    }
    *target = value;
    return absl::OkStatus();
  };
}

void SetTarget(const Option&, bool* target, Flag& flag) {
  flag.value_name = "";  // a switch, which needs no value
  flag.set = base::SetterOf(target);
}

void SetTarget(const Option& option, absl::Duration* target, Flag& flag) {
  flag.default_text = absl::FormatDuration(*target);
  flag.set = [target, least = option.least](std::string_view text) {
    absl::Duration value;
    RETURN_IF_ERROR(base::ParseValue(text, &value));
    if (value < least) {
      return absl::InvalidArgumentError(
          absl::StrFormat("want at least %s, got \"%s\"", absl::FormatDuration(least), text));
    }
    *target = value;
    return absl::OkStatus();
  };
}

void SetTarget(const Option&, base::LogLevel* target, Flag& flag) {
  flag.default_text = LogLevels()[static_cast<size_t>(*target)];
  flag.value_name = absl::StrJoin(LogLevels(), "|");
  flag.set = [target](std::string_view text) {
    std::string name;
    const absl::Status status = base::ChoiceSetter(&name, LogLevels())(text);
    if (status.ok()) {
      const auto it = std::ranges::find(LogLevels(), name);
      *target = static_cast<base::LogLevel>(it - LogLevels().begin());
    }
    return status;
  };
}

}  // namespace

void AddOptions(std::span<const Option> options, base::FlagSet& flags) {
  for (const Option& option : options) {
    Flag flag{.name = std::string(option.name),
              .value_name = std::string(option.placeholder),
              .help = std::string(option.help)};
    std::visit([&](auto* target) { SetTarget(option, target, flag); }, option.target);
    flags.Section(std::string(option.group));
    flags.Add(std::move(flag));
  }
}

}  // namespace quire::server
