// quire-sim: serves traces of requests on a virtual clock.

#include <iostream>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"

#include "base/standard_files.h"
#include "tools/sim/sim_command.h"

int main(int argc, char** argv) {
  quire::base::OpenStandardFiles();
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const std::vector<std::string> args(argv + 1, argv + argc);
  return quire::tools::RunSim(args, std::cout, std::cerr);
}
