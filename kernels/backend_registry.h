#pragma once

// Creates backends by name. Within the library, only backend_registry.cc includes the header of a
// concrete backend.

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "kernels/backend.h"

namespace quire::kernels {

struct BackendOptions {
  std::string name = "auto";     // auto | cpu; cuda is not built in yet
  std::string cpu_isa = "auto";  // auto | portable | avx2 | avx512 | amx
  int num_threads = 0;           // 0: physical cores within affinity and cgroup quota
  bool pack_weights = true;      // false: weights stay mapped in the file's layout (same bits)
};

// Creates the backend that `options` describe. If this build or machine does not have it,
// InvalidArgument names the available choices.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options);

}  // namespace quire::kernels
