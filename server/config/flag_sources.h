#pragma once

// Reads the values of flags from the environment and from a file.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/flags/flag_set.h"

namespace quire::server {

// Returns the value of the variable `name`, or nullptr when there is no such variable.
using Environment = std::function<const char*(const char* name)>;

// Reads the variables of `flags`, and no others. For example, the variable QUIRE_KV_CACHE_MIB sets
// --kv_cache_mib.
std::vector<base::Assignment> ReadEnvironment(const base::FlagSet& flags,
                                              const Environment& environment);

// Returns a warning for each of `variables` ("NAME=value") whose name begins with QUIRE_ but
// belongs to no flag. Such a variable may be mistyped. Variables of the client cause no warning,
// nor do those that Kubernetes sets for a service.
std::vector<std::string> WarnOfVariables(const base::FlagSet& flags,
                                         std::span<const char* const> variables);

// Reads lines `name = value`. Skips empty lines and lines that begin with '#'. The message of an
// InvalidArgument names the line.
absl::StatusOr<std::vector<base::Assignment>> ReadFlagFile(const std::string& path,
                                                           const base::FlagSet& flags);

}  // namespace quire::server
