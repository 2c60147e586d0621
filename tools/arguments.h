#pragma once

// The command line of a tool: its options, and the variables that they set.

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

namespace quire::tools {

struct Option {
  // Not owned. A bool is a switch; the others take a value, as --name=VALUE or as the next
  // argument.
  using Target = std::variant<bool*, std::string*, std::optional<std::string>*, int64_t*>;

  std::string_view name;  // "--json"
  Target target;
  int64_t min = 0;  // for an integer
  int64_t max = std::numeric_limits<int32_t>::max();
};

// Sets the targets of the options in `args`, and returns the operands in order. "--" ends the
// options. InvalidArgument names the option and the value that it wants.
absl::StatusOr<std::vector<std::string>> ParseArguments(const std::vector<std::string>& args,
                                                        std::span<const Option> options);

}  // namespace quire::tools
