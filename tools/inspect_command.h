#pragma once

// The quire-inspect command, apart from its process.

#include <ostream>
#include <string>
#include <vector>

namespace quire::tools {

// `args` without the program's name. Returns the exit status: 0; 1 for a file that is no model,
// with one line on `err`; 2 for arguments that make no sense, with one line on `err`.
int RunInspect(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace quire::tools
