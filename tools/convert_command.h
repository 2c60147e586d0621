#pragma once

// The quire-convert command, without main().

#include <ostream>
#include <string>
#include <vector>

namespace quire::tools {

// Runs the command. `args` does not have the name of the program. Returns the exit status: 0; 1
// when the model cannot be converted or the file cannot be written; 2 for wrong arguments. With
// status 1 or 2, the last line on `err` gives the reason. Progress is also written to `err`.
int RunConvert(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace quire::tools
