#include "server/config/option_sources.h"

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

absl::Status Unknown(std::span<const Option> options, std::string_view source,
                     std::string_view what, std::string_view name, std::string_view prefix) {
  const std::string_view nearest = NearestName(options, name);
  return absl::InvalidArgumentError(
      nearest.empty()
          ? absl::StrFormat("%s: unknown %s; see --help", source, what)
          : absl::StrFormat("%s: unknown %s; did you mean %s%s?", source, what, prefix, nearest));
}

}  // namespace

absl::StatusOr<Arguments> ReadArguments(std::span<const char* const> arguments,
                                        std::span<const Option> options) {
  Arguments out;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "-h" || argument == "--help") {
      out.help = true;
      continue;
    }
    if (argument == "--version") {
      out.version = true;
      continue;
    }
    if (!argument.starts_with("--")) {
      return absl::InvalidArgumentError(
          absl::StrFormat("unexpected argument \"%s\": flags begin with --", argument));
    }
    const size_t equals = argument.find('=');
    const std::string_view flag = argument.substr(0, equals);
    const Option* option = FindOption(options, flag.substr(2));
    if (option == nullptr) return Unknown(options, flag, "flag", flag.substr(2), "--");
    std::string_view value;
    if (equals != std::string_view::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < arguments.size() && !std::string_view(arguments[i + 1]).starts_with("--")) {
      value = arguments[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrFormat("%s: want a value", flag));
    }
    out.assignments.push_back({option, std::string(value), std::string(flag)});
  }
  return out;
}

std::vector<Assignment> ReadEnvironment(std::span<const Option> options,
                                        const Environment& environment) {
  std::vector<Assignment> assignments;
  for (const Option& option : options) {
    const std::string name = EnvironmentName(option);
    if (const char* value = environment(name.c_str())) {
      assignments.push_back({&option, value, name});
    }
  }
  return assignments;
}

std::vector<std::string> WarnOfVariables(std::span<const Option> options,
                                         std::span<const char* const> variables) {
  constexpr std::string_view kPrefix = "QUIRE_";
  constexpr std::string_view kOfTheClient[] = {"QUIRE_TOKEN", "QUIRE_SERVER"};
  std::vector<std::string> warnings;
  for (const std::string_view variable : variables) {
    const std::string_view name = variable.substr(0, variable.find('='));
    if (!name.starts_with(kPrefix)) continue;
    if (std::ranges::find(kOfTheClient, name) != std::end(kOfTheClient)) continue;
    // Kubernetes sets such variables in every pod for a service whose name begins with "quire".
    if (absl::StrContains(base::ToAbsl(name), "_SERVICE_") ||
        absl::StrContains(base::ToAbsl(name), "_PORT")) {
      continue;
    }
    const bool known = std::ranges::any_of(
        options, [&](const Option& option) { return EnvironmentName(option) == name; });
    if (known) continue;
    const std::string lower = absl::AsciiStrToLower(base::ToAbsl(name.substr(kPrefix.size())));
    const std::string_view nearest = NearestName(options, lower);
    warnings.push_back(absl::StrCat(
        base::ToAbsl(name), " is set, but there is no such option",
        nearest.empty() ? ""
                        : absl::StrFormat("; did you mean QUIRE_%s?",
                                          absl::AsciiStrToUpper(base::ToAbsl(nearest)))));
  }
  return warnings;
}

absl::StatusOr<std::vector<Assignment>> ReadOptionFile(const std::string& path,
                                                       std::span<const Option> options) {
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
    const Option* option = FindOption(options, name);
    if (option != nullptr && option->name == "config") {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: config: a file names no other file", where));
    }
    if (option == nullptr) {
      return Unknown(options, where, absl::StrFormat("name \"%s\"", name), name, "");
    }
    assignments.push_back({option, std::string(stripped(line.substr(equals + 1))),
                           absl::StrCat(where, ": ", base::ToAbsl(name))});
  }
  return assignments;
}

absl::Status Apply(std::span<const Assignment> assignments) {
  for (const Assignment& assignment : assignments) {
    if (absl::Status status = SetOption(*assignment.option, assignment.value); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(assignment.source, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::server
