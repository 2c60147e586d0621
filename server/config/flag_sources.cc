#include "server/config/flag_sources.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

#include "base/small_file.h"
#include "base/strings.h"

namespace quire::server {
namespace {

using base::Assignment;
using base::Flag;

std::string EnvironmentName(const Flag& flag) {
  return absl::StrCat("QUIRE_", absl::AsciiStrToUpper(flag.name));
}

// Returns the flag name that is nearest to `name`. Returns "" when no flag is near, or when only
// the command line may set the nearest flag.
std::string_view Nearest(const base::FlagSet& flags, std::string_view name) {
  const std::string_view nearest = flags.Nearest(name);
  return nearest.empty() || flags.Find(nearest)->command_line_only ? "" : nearest;
}

}  // namespace

std::vector<Assignment> ReadEnvironment(const base::FlagSet& flags,
                                        const Environment& environment) {
  std::vector<Assignment> assignments;
  for (const Flag& flag : flags.flags()) {
    if (flag.command_line_only) continue;
    const std::string name = EnvironmentName(flag);
    if (const char* value = environment(name.c_str())) {
      assignments.push_back({flag.name, value, name});
    }
  }
  return assignments;
}

std::vector<std::string> WarnOfVariables(const base::FlagSet& flags,
                                         std::span<const char* const> variables) {
  constexpr std::string_view kPrefix = "QUIRE_";
  constexpr std::string_view kOfTheClient[] = {"QUIRE_TOKEN", "QUIRE_SERVER"};
  std::vector<std::string> warnings;
  for (const std::string_view variable : variables) {
    const std::string_view name = variable.substr(0, variable.find('='));
    if (!name.starts_with(kPrefix)) continue;
    if (std::ranges::find(kOfTheClient, name) != std::end(kOfTheClient)) continue;
    // For a service whose name begins with "quire", Kubernetes sets variables such as
    // QUIRE_SERVICE_HOST and QUIRE_PORT in every pod.
    if (absl::StrContains(base::ToAbsl(name), "_SERVICE_") ||
        absl::StrContains(base::ToAbsl(name), "_PORT")) {
      continue;
    }
    const bool known = std::ranges::any_of(flags.flags(), [&](const Flag& flag) {
      return !flag.command_line_only && EnvironmentName(flag) == name;
    });
    if (known) continue;
    const std::string lower = absl::AsciiStrToLower(base::ToAbsl(name.substr(kPrefix.size())));
    const std::string_view nearest = Nearest(flags, lower);
    warnings.push_back(absl::StrCat(
        base::ToAbsl(name), " is set, but there is no such flag",
        nearest.empty() ? ""
                        : absl::StrFormat("; did you mean QUIRE_%s?",
                                          absl::AsciiStrToUpper(base::ToAbsl(nearest)))));
  }
  return warnings;
}

absl::StatusOr<std::vector<Assignment>> ReadFlagFile(const std::string& path,
                                                     const base::FlagSet& flags) {
  const absl::StatusOr<std::string> text = base::ReadSmallFile(path);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--config: ", text.status().message()));
  }
  std::vector<Assignment> assignments;
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(*text, '\n')) {
    ++number;
    const std::string_view line = base::ToStd(absl::StripAsciiWhitespace(raw));
    if (line.empty() || line.front() == '#') continue;
    const std::string where = absl::StrCat(path, ":", number);
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: want name = value", where));
    }
    const auto stripped = [](std::string_view part) {
      return base::ToStd(absl::StripAsciiWhitespace(base::ToAbsl(part)));
    };
    const std::string_view name = stripped(line.substr(0, equals));
    const Flag* flag = flags.Find(name);
    if (flag == nullptr || flag->command_line_only) {
      const std::string_view nearest = Nearest(flags, name);
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: unknown name \"%s\"; %s", where, name,
          nearest.empty() ? "see --help" : absl::StrFormat("did you mean %s?", nearest)));
    }
    if (flag->name == "config") {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: config: a file names no other file", where));
    }
    assignments.push_back({flag->name, std::string(stripped(line.substr(equals + 1))),
                           absl::StrCat(where, ": ", base::ToAbsl(name))});
  }
  return assignments;
}

}  // namespace quire::server
