#pragma once

// The quire-convert command, apart from its process.

#include <ostream>
#include <string>
#include <vector>

namespace quire::tools {

// `args` without the program's name. Returns the exit status: 0; 1 for a model that cannot be
// converted or a file that cannot be written, with one line on `err`; 2 for arguments that make no
// sense, with one line on `err`.
int RunConvert(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace quire::tools
