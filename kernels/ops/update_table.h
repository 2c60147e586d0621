#pragma once

// Writes some entries of a table: table[changes[i].index] = changes[i].value. The block tables of
// the sequences stay in the backend's memory, and a step uploads only the entries that differ from
// those of the step before.

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/tensor_view.h"

namespace quire::kernels {

struct TableChange {
  int32_t index = 0;
  int32_t value = 0;
};

struct UpdateTableArgs {
  TensorView table;  // [num_entries]  int32, written where there is a change
  // [num_changes, 2]  int32: TableChange structs with different indices. The op ignores an index
  // outside the table.
  TensorView changes;
};
absl::Status Validate(const UpdateTableArgs& args);

}  // namespace quire::kernels
