#pragma once

// One option of the server: its target variable, its range and its help text.

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/time/time.h"

#include "base/flags/flag_set.h"
#include "base/logging.h"

namespace quire::server {

struct Option {
  // Points to the variable that the option sets. Not owned. The option table is made for one
  // config, and does not outlive that config.
  using Target = std::variant<std::string*, int32_t*, int64_t*, double*, bool*, absl::Duration*,
                              base::LogLevel*>;

  std::string_view name;         // "kv_cache_mib"
  std::string_view group;        // heading in --help; options of one group are adjacent
  std::string_view placeholder;  // "MIB"; empty: the choices are shown
  std::string_view help;
  Target target;
  int64_t min = 0;  // `min` and `max` are for integers and fractions; a fraction is above `min`
  int64_t max = std::numeric_limits<int32_t>::max();
  absl::Duration least = {};              // smallest value of a time
  std::vector<std::string> choices = {};  // for a string; empty: any value
};

// Declares a flag for each option. The target's present value is the flag's default.
void AddOptions(std::span<const Option> options, base::FlagSet& flags);

}  // namespace quire::server
