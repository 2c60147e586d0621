#pragma once

// One option of a program: its target variable, its range and its help text. One table of these
// serves the flags, the environment, the file and --help, so that none can drift from the others.

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/logging.h"

namespace quire::server {

struct Option {
  // Not owned: the table is made for one config and does not outlive it.
  using Target = std::variant<std::string*, int32_t*, int64_t*, absl::Duration*, base::LogLevel*>;

  std::string_view name;         // "kv_cache_mib": --kv_cache_mib, QUIRE_KV_CACHE_MIB
  std::string_view group;        // heading in --help; the table keeps a group's options together
  std::string_view placeholder;  // "MIB"
  std::string_view help;
  Target target;
  int64_t min = 0;  // for integers, as is the next
  int64_t max = std::numeric_limits<int32_t>::max();
  std::vector<std::string_view> choices;  // for a string; empty: any value
};

// Sets the option's target. The message of an InvalidArgument ("want an integer 0..1024, got
// \"x\"") does not name the option.
absl::Status SetOption(const Option& option, std::string_view text);

// Returns the value as SetOption would take it: "30s", "4194304", "".
std::string FormatOption(const Option& option);

// Returns the name of the option's environment variable, such as "QUIRE_KV_CACHE_MIB".
std::string EnvironmentName(const Option& option);

// Returns nullptr when no option has this name. '-' and '_' are equal in names.
const Option* FindOption(std::span<const Option> options, std::string_view name);

// Returns the option's name that is nearest to a mistyped one; empty when none is near.
std::string_view NearestName(std::span<const Option> options, std::string_view name);

// Returns the options' part of --help: one paragraph for each option, by group, with its default.
std::string DescribeOptions(std::span<const Option> options);

}  // namespace quire::server
