#pragma once

// Backends by name. The one place with an #if on a backend is backend_registry.cc.

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "kernels/backend.h"

namespace quire::kernels {

struct BackendOptions {
  std::string name = "auto";     // auto | cpu | cuda
  std::string cpu_isa = "auto";  // auto | portable | avx2 | avx512 | amx
  int num_threads = 0;           // 0: physical cores within affinity and cgroup quota
  bool pack_weights = true;      // false: compute on the file's own layout, mapped (same bits)
};

// InvalidArgument names what this build and machine have when the choice is not among them.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options);

}  // namespace quire::kernels
