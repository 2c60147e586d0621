#pragma once

// The quire-inspect command, without main().

#include <ostream>
#include <string>
#include <vector>

namespace quire::tools {

// Runs the command. `args` does not have the name of the program. Returns the exit status: 0; 1
// when a file cannot be read or used; 2 for wrong arguments; 3 when the model is shown but
// quire-server would refuse it. With status 1 or 2, the last line on `err` gives the reason.
int RunInspect(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace quire::tools
