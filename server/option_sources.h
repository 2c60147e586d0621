#pragma once

// Where values of options come from: the command line, the environment, a file.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "server/option.h"

namespace quire::server {

struct Assignment {
  const Option* option;  // of the table that was given
  std::string value;
  std::string source;  // "--threads", "QUIRE_THREADS", "server.conf:3: threads"
};

struct Arguments {
  std::vector<Assignment> assignments;
  bool help = false;
  bool version = false;
};

// nullptr when there is no such variable.
using Environment = std::function<const char*(const char* name)>;

// --name=value or --name value, --help, -h, --version; '-' and '_' are alike within a name.
// InvalidArgument for anything else, with the nearest name that there is.
absl::StatusOr<Arguments> ReadArguments(std::span<const char* const> arguments,
                                        std::span<const Option> options);

// Variables of other names are not read.
std::vector<Assignment> ReadEnvironment(std::span<const Option> options,
                                        const Environment& environment);

// A line for each variable ("NAME=value") that looks like an option's, and is none: somebody
// mistyped it, or means another program.
std::vector<std::string> WarnOfVariables(std::span<const Option> options,
                                         std::span<const char* const> variables);

// Lines `name = value`; empty ones and those that begin with '#' are skipped. InvalidArgument names
// the line.
absl::StatusOr<std::vector<Assignment>> ReadOptionFile(const std::string& path,
                                                       std::span<const Option> options);

// Sets them in order, so that later ones go before earlier ones; InvalidArgument names the source.
absl::Status Apply(std::span<const Assignment> assignments);

}  // namespace quire::server
