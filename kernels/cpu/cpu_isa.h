#pragma once

// Which ISA paths this build and machine have, best first.

#include <string>

#include "absl/status/statusor.h"

#include "kernels/cpu/kernel_table.h"

namespace quire::kernels::cpu {

// "auto" is the best; a name forces one. InvalidArgument names the paths there are.
absl::StatusOr<const KernelTable*> SelectKernels(const std::string& name);

}  // namespace quire::kernels::cpu
