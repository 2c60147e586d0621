#pragma once

// The CPU backend: float32 activations between ops, weights with the file's bits, the caller's
// thread and a pool of its own.
//
// The rule: a row of any op's output has the same bits whatever other rows are in the step, however
// they are chunked, on any number of threads, with packed or mapped weights, and on every ISA path.
// The kernels state the order of their sums (linear_body.h, attention_body.h, norm_body.h); here
// work is only divided between rows, outputs, heads and whole segments of keys.
//
// Ops have run when they return. An op allocates only for a step larger than any before.

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "kernels/backend.h"

namespace quire::kernels::cpu {

struct CpuBackendOptions {
  std::string isa = "auto";  // auto | portable | avx2 | avx512 | amx
  int num_threads = 0;       // 0: physical cores within affinity and cgroup quota
  bool pack_weights = true;  // false: weights stay mapped and are packed at each use
};

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuBackendOptions& options);

}  // namespace quire::kernels::cpu
