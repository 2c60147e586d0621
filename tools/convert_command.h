#pragma once

// The quire-convert command, without main().

#include <ostream>
#include <string>
#include <vector>

namespace quire::tools {

// `args` does not have the program's name. Returns the exit status: 0; 1 when the model cannot be
// converted or the file cannot be written; 2 for wrong arguments. 1 and 2 come with one line on
// `err`.
int RunConvert(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace quire::tools
