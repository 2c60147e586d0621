#pragma once

// quire-inspect in this process.

#include <sstream>
#include <string>
#include <vector>

#include "tools/inspect_command.h"

namespace quire::tools {

struct Result {
  int status = 0;
  std::string out;
  std::string err;
};

inline Result RunInspect(const std::vector<std::string>& args) {
  std::ostringstream out;
  std::ostringstream err;
  const int status = RunInspect(args, out, err);
  return {.status = status, .out = out.str(), .err = err.str()};
}

}  // namespace quire::tools
