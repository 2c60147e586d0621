#include "kernels/backend_registry.h"

#include "absl/strings/str_cat.h"

#include "kernels/cpu/cpu_backend.h"

namespace quire::kernels {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) {
  if (options.name == "auto" || options.name == "cpu") {
    return cpu::CreateCpuBackend({.isa = options.cpu_isa,
                                  .num_threads = options.num_threads,
                                  .pack_weights = options.pack_weights});
  }
  return absl::InvalidArgumentError(
      absl::StrCat("backend: want one of auto|cpu, which this build has, got ", options.name));
}

}  // namespace quire::kernels
