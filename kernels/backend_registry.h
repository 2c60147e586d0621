#pragma once

// Creates backends by name. Within the library, only backend_registry.cc includes the header of a
// concrete backend. A program may register others.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "kernels/backend.h"

namespace quire::kernels {

struct BackendOptions {
  std::string name = "auto";     // auto | cpu | one that was registered
  std::string cpu_isa = "auto";  // auto | portable | avx2 | avx512 | amx
  int num_threads = 0;           // 0: physical cores within affinity and cgroup quota
  bool pack_weights = true;      // false: weights stay mapped in the file's layout (same bits)
  DType activation_dtype = DType::kF32;  // f32 | f16 | bf16; the CPU's is always f32
};

using BackendFactory =
    std::function<absl::StatusOr<std::unique_ptr<Backend>>(const BackendOptions& options)>;

// From here on, CreateBackend knows `name`. Not thread-safe: call it before other threads start.
void RegisterBackend(std::string name, BackendFactory factory);

// Creates the backend that `options` describe. If this build or machine does not have it,
// InvalidArgument names the available choices.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options);

}  // namespace quire::kernels
