#include "tools/arguments.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace quire::tools {
namespace {

absl::Status SetValue(const Option& option, const std::string& value) {
  if (auto* const* text = std::get_if<std::string*>(&option.target)) {
    **text = value;
  } else if (auto* const* optional = std::get_if<std::optional<std::string>*>(&option.target)) {
    **optional = value;
  } else if (auto* const* number = std::get_if<int64_t*>(&option.target)) {
    int64_t parsed = 0;
    if (!absl::SimpleAtoi(value, &parsed) || parsed < option.min || parsed > option.max) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: want %d..%d, got \"%s\"", option.name,
                                                        option.min, option.max, value));
    }
    **number = parsed;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseArguments(const std::vector<std::string>& args,
                                                        std::span<const Option> options) {
  std::vector<std::string> operands;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--") {
      operands.insert(operands.end(), args.begin() + i + 1, args.end());
      break;
    }
    if (!arg.starts_with("-") || arg == "-") {
      operands.push_back(arg);
      continue;
    }
    const size_t equals = arg.find('=');
    const std::string name = arg.substr(0, equals);
    const auto option = std::ranges::find(options, name, &Option::name);
    if (option == options.end()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown option ", arg));
    }
    if (bool* const* flag = std::get_if<bool*>(&option->target)) {
      if (equals != std::string::npos) {
        return absl::InvalidArgumentError(absl::StrCat(name, ": want no value"));
      }
      **flag = true;
    } else if (equals != std::string::npos) {
      RETURN_IF_ERROR(SetValue(*option, arg.substr(equals + 1)));
    } else if (++i == args.size()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": want a value after it"));
    } else {
      RETURN_IF_ERROR(SetValue(*option, args[i]));
    }
  }
  return operands;
}

}  // namespace quire::tools
