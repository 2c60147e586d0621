#pragma once

// Creates backends by name. Within the library, only backend_registry.cc includes the header of a
// concrete backend. A program may register further backends.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "kernels/backend.h"

namespace quire::kernels {

struct BackendOptions {
  std::string name = "auto";     // auto | cpu | a registered name
  std::string cpu_isa = "auto";  // auto | portable | avx2 | avx512 | amx
  int num_threads = 0;           // 0: all physical cores that affinity and cgroup quota allow
  // true: weights are copied to the layout of the kernels. false: weights stay mapped in the layout
  // of the file. Both give results with the same bits.
  bool pack_weights = true;
  DType activation_dtype = DType::kF32;  // f32 | f16 | bf16; the CPU backend always uses f32
};

using BackendFactory =
    std::function<absl::StatusOr<std::unique_ptr<Backend>>(const BackendOptions& options)>;

// Makes CreateBackend accept `name`. Not thread-safe: call it before other threads start.
void RegisterBackend(std::string name, BackendFactory factory);

// Creates the backend that `options` describe. Returns an InvalidArgument error that names the
// available choices if this build or this machine does not have the backend.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options);

}  // namespace quire::kernels
