#pragma once

// Reads the values of flags from the environment and from a file.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/flags/flag_set.h"

namespace quire::server {

// Returns a variable's value; nullptr when there is no such variable.
using Environment = std::function<const char*(const char* name)>;

// Reads the variables of `flags`, and no others. The variable of --kv_cache_mib is
// QUIRE_KV_CACHE_MIB.
std::vector<base::Assignment> ReadEnvironment(const base::FlagSet& flags,
                                              const Environment& environment);

// Returns a line for each variable ("NAME=value") that looks like a flag's but is not: it may be
// mistyped, or meant for another program.
std::vector<std::string> WarnOfVariables(const base::FlagSet& flags,
                                         std::span<const char* const> variables);

// Reads lines `name = value`. Empty lines, and those that begin with '#', are skipped.
// InvalidArgument names the line.
absl::StatusOr<std::vector<base::Assignment>> ReadFlagFile(const std::string& path,
                                                           const base::FlagSet& flags);

}  // namespace quire::server
