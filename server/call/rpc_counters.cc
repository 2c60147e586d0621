#include "server/call/rpc_counters.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/strings.h"

namespace quire::server {
namespace {

constexpr std::string_view kPackage = "/quire.v1.";

}  // namespace

std::string PathOf(Rpc rpc) {
  const RpcName& name = kRpcs[static_cast<size_t>(rpc)];
  return absl::StrCat(base::ToAbsl(kPackage), base::ToAbsl(name.service), "/",
                      base::ToAbsl(name.method));
}

std::optional<Rpc> FindRpc(std::string_view path) {
  if (!path.starts_with(kPackage)) return std::nullopt;
  path.remove_prefix(kPackage.size());
  const size_t slash = std::min(path.find('/'), path.size());
  const std::string_view service = path.substr(0, slash);
  const std::string_view method = path.substr(std::min(slash + 1, path.size()));
  const auto* const found = std::ranges::find_if(
      kRpcs, [&](const RpcName& name) { return name.service == service && name.method == method; });
  if (found == kRpcs.end()) return std::nullopt;
  return static_cast<Rpc>(found - kRpcs.begin());
}

void OpenCalls::Begin() {
  base::MutexLock lock(mu_);
  ++num_open_;
}

void OpenCalls::End() {
  base::MutexLock lock(mu_);
  // Notifies while the lock is held, because the waiting thread may destroy this object as soon as
  // the lock is released.
  if (--num_open_ == 0) none_.NotifyAll();
}

int64_t OpenCalls::Get() const {
  base::MutexLock lock(mu_);
  return num_open_;
}

bool OpenCalls::WaitUntilNone(absl::Time deadline) const {
  base::MutexLock lock(mu_);
  while (num_open_ > 0) {
    const absl::Duration left = deadline - base::SteadyNow();
    if (left <= absl::ZeroDuration()) return false;
    none_.WaitFor(mu_, absl::ToChronoNanoseconds(left));
  }
  return true;
}

}  // namespace quire::server
