#pragma once

// The CPU backend keeps float32 activations between ops. It computes with exactly the weights of
// the file. It works on the caller's thread and on a pool of threads of its own.
//
// The backend has one rule: each row of an op's output always has the same bits. The bits do not
// depend on the other rows in the step, the chunking, the number of threads, packed or mapped
// weights, or the ISA path. The kernels state the order of their sums (linear_body.h,
// attention_body.h, norm_body.h). The backend only divides work between rows, outputs, heads and
// whole segments of keys.
//
// The work of an op is done when the op returns. An op allocates only when a step is larger than
// all earlier steps.

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
