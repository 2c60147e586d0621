#include "server/call/held_bytes.h"

#include "base/status_macros.h"

namespace quire::server {

HeldBytes::Share::~Share() {
  base::MutexLock lock(held_.mu_);
  held_.limit_.GiveBack(tenant_, count_);
}

absl::Status HeldBytes::Share::Take(int64_t count) {
  base::MutexLock lock(held_.mu_);
  RETURN_IF_ERROR(
      held_.limit_.Check("bytes of requests and unread answers", tenant_, limits_, count));
  held_.limit_.Take(tenant_, count);
  count_ += count;
  return absl::OkStatus();
}

}  // namespace quire::server
