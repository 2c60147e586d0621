#pragma once

// Selects among the ISA paths that this build and machine have.

#include <string>

#include "absl/status/statusor.h"

#include "kernels/cpu/kernel_table.h"

namespace quire::kernels::cpu {

// "auto" selects the best; a name selects that path. InvalidArgument names the available paths.
absl::StatusOr<const KernelTable*> SelectKernels(const std::string& name);

}  // namespace quire::kernels::cpu
