#pragma once

// Selects among the ISA paths that this build and machine have.

#include <string>

#include "absl/status/statusor.h"

#include "kernels/cpu/kernel_table.h"

namespace quire::kernels::cpu {

// Returns the kernels of the path `name`, or of the best path for "auto". For any other name,
// returns an InvalidArgument error that lists the available paths.
absl::StatusOr<const KernelTable*> SelectKernels(const std::string& name);

}  // namespace quire::kernels::cpu
