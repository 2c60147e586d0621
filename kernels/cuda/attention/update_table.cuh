#pragma once

#include "kernels/cuda/device/rows.cuh"
#include "kernels/ops/update_table.h"

namespace quire::kernels::cuda {

struct UpdateTableParams {
  int32_t* table;              // [num_entries]
  const TableChange* changes;  // [num_changes]
  int64_t num_entries, num_changes;
};

inline constexpr int kUpdateTableThreads = 128;

// Each thread makes one change.
__global__ void __launch_bounds__(kUpdateTableThreads)
    UpdateTableKernel(const __grid_constant__ UpdateTableParams p) {
  const int64_t i = int64_t{blockIdx.x} * kUpdateTableThreads + threadIdx.x;
  if (i >= p.num_changes) return;
  const TableChange change = p.changes[i];
  if (change.index >= 0 && change.index < p.num_entries) p.table[change.index] = change.value;
}

}  // namespace quire::kernels::cuda
