#pragma once

// Runs quire-inspect and quire-convert in this process.

#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "tools/convert_command.h"
#include "tools/inspect_command.h"

namespace quire::tools {

struct Result {
  int status = 0;
  std::string out;
  std::string err;
};

using Command = int(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

inline Result RunCommand(Command& command, const std::vector<std::string>& args) {
  std::ostringstream out;
  std::ostringstream err;
  const int status = command(args, out, err);
  return {.status = status, .out = out.str(), .err = err.str()};
}
inline Result RunInspect(const std::vector<std::string>& args) {
  return RunCommand(RunInspect, args);
}
inline Result RunConvert(const std::vector<std::string>& args) {
  return RunCommand(RunConvert, args);
}

}  // namespace quire::tools
