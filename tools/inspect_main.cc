// quire-inspect: shows the contents of a model file and the memory that serving it takes.

#include <iostream>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"

#include "base/standard_files.h"
#include "tools/inspect_command.h"

int main(int argc, char** argv) {
  quire::base::OpenStandardFiles();
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const std::vector<std::string> args(argv + 1, argv + argc);
  return quire::tools::RunInspect(args, std::cout, std::cerr);
}
