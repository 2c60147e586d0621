#pragma once

// The quire-inspect command, without main().

#include <ostream>
#include <string>
#include <vector>

namespace quire::tools {

// `args` does not have the program's name. Returns the exit status: 0; 1 when a file cannot be read
// or used; 2 for wrong arguments; 3 when the model is shown but quire-server would refuse it. 1 and
// 2 come with one line on `err`.
int RunInspect(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace quire::tools
