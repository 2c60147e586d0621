#include "server/identity/identity_store.h"

#include <utility>

#include "base/logging.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace quire::server {
namespace {

using base::Log;
using base::LogLevel;

}  // namespace

absl::StatusOr<std::unique_ptr<IdentityStore>> IdentityStore::Create(
    std::string path, const IdentityContext& context) {
  std::unique_ptr<IdentityStore> store(new IdentityStore(std::move(path), context));
  RETURN_IF_ERROR(store->Load());
  return store;
}

std::shared_ptr<const Identities> IdentityStore::Get() const {
  base::MutexLock lock(mu_);
  return identities_;
}

absl::Status IdentityStore::Load() {
  std::shared_ptr<const Identities> identities;
  if (path_.empty()) {
    identities = Identities::WithoutFile(context_);
  } else {
    ASSIGN_OR_RETURN(identities, Identities::Load(path_, context_));
  }
  {
    base::MutexLock lock(mu_);
    identities_ = identities;
  }
  // Logs after the change, so that the new identities are in use when the message appears.
  if (!path_.empty()) {
    Log(LogLevel::kInfo, "identities", "loaded", {{"file", path_}, {"lines", identities->size()}});
  }
  if (!identities->has_operator()) {
    Log(LogLevel::kWarning, "identities",
        "nobody has the role operator: GetStats, Drain, reflection and Abort of others' requests "
        "are refused, except at --control_listen on loopback. To grant the role, write "
        "roles=operator on a line of --auth_token_file");
  }
  return absl::OkStatus();
}

void IdentityStore::Reload() {
  if (path_.empty()) return;
  if (const absl::Status status = Load(); !status.ok()) {
    Log(LogLevel::kError, "identities", "not loaded: who could call before still can",
        {{"reason", base::ToStd(status.message())}});
  }
}

}  // namespace quire::server
