#pragma once

// One knob of a program: where it lives, what it may be, how it is explained. A table of these
// gives the flags, the environment, the file and --help alike, so that none can drift from the
// others.

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
  // Not owned; the table is made for one config and lives no longer.
  using Target = std::variant<std::string*, int32_t*, int64_t*, absl::Duration*, base::LogLevel*>;

  std::string_view name;         // "kv_cache_mib": --kv_cache_mib, QUIRE_KV_CACHE_MIB
  std::string_view group;        // headline in --help; options of one group stand together
  std::string_view placeholder;  // "MIB"
  std::string_view help;
  Target target;
  int64_t min = 0;  // of integers
  int64_t max = std::numeric_limits<int32_t>::max();
  std::vector<std::string_view> choices;  // of a string; empty: any
};

// InvalidArgument: "want 0..1024, got \"x\"", without the option's name.
absl::Status SetOption(const Option& option, std::string_view text);

// The value as SetOption would take it: "30s", "4194304", "".
std::string FormatOption(const Option& option);

// "QUIRE_KV_CACHE_MIB".
std::string EnvironmentName(const Option& option);

// nullptr when there is none. '-' and '_' are alike.
const Option* FindOption(std::span<const Option> options, std::string_view name);

// The option whose name is nearest to a mistyped one; empty when none is near.
std::string_view NearestName(std::span<const Option> options, std::string_view name);

// One paragraph an option, by group, with its default and its environment variable.
std::string DescribeOptions(std::span<const Option> options);

}  // namespace quire::server
