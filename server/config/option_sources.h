#pragma once

// Reads the values of options from their sources: the command line, the environment, a file.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "server/config/option.h"

namespace quire::server {

struct Assignment {
  const Option* option;  // in the given table
  std::string value;
  std::string source;  // "--threads", "QUIRE_THREADS", "server.conf:3: threads"
};

struct Arguments {
  std::vector<Assignment> assignments;
  bool help = false;
  bool version = false;
};

// Returns a variable's value; nullptr when there is no such variable.
using Environment = std::function<const char*(const char* name)>;

// Accepts --name=value or --name value, --help, -h, --version; '-' and '_' are equal within a name.
// InvalidArgument for anything else, with the nearest name.
absl::StatusOr<Arguments> ReadArguments(std::span<const char* const> arguments,
                                        std::span<const Option> options);

// Reads the variables of `options`, and no others.
std::vector<Assignment> ReadEnvironment(std::span<const Option> options,
                                        const Environment& environment);

// Returns a line for each variable ("NAME=value") that looks like an option's but is not: it may be
// mistyped, or meant for another program.
std::vector<std::string> WarnOfVariables(std::span<const Option> options,
                                         std::span<const char* const> variables);

// Reads lines `name = value`. Empty lines, and those that begin with '#', are skipped.
// InvalidArgument names the line.
absl::StatusOr<std::vector<Assignment>> ReadOptionFile(const std::string& path,
                                                       std::span<const Option> options);

// Sets the options in order, so that later assignments override earlier ones. InvalidArgument names
// the source.
absl::Status Apply(std::span<const Assignment> assignments);

}  // namespace quire::server
