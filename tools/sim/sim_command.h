#pragma once

// The command line of quire-sim.

#include <ostream>
#include <string>
#include <vector>

namespace quire::tools {

// Runs `quire-sim ARGS`. Returns the exit status: 0, 1 when a file cannot be used, 2 for wrong
// arguments.
int RunSim(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace quire::tools
