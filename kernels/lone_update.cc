#include "kernels/lone_update.h"

#include <cstring>

#include "base/status_macros.h"

namespace quire::kernels {

absl::StatusOr<LoneUpdate> EnqueueLoneUpdate(Backend& backend, const TableUpdate& update) {
  LoneUpdate lone;
  if (update.changes.empty()) return lone;
  const auto bytes = static_cast<int64_t>(update.changes.size_bytes());
  ASSIGN_OR_RETURN(lone.host, backend.AllocateHost(bytes));
  ASSIGN_OR_RETURN(lone.changes, backend.Allocate(bytes));
  std::memcpy(lone.host.data(), update.changes.data(), update.changes.size_bytes());
  RETURN_IF_ERROR(backend.CopyToDevice(lone.changes.data(), lone.host.data(), bytes));
  RETURN_IF_ERROR(backend.UpdateTable(
      {.table = update.table,
       .changes = TensorView(lone.changes.data(), DType::kI32, {std::ssize(update.changes), 2})}));
  return lone;
}

}  // namespace quire::kernels
