#pragma once

// Holds the current set of callers. The file that lists the callers may change while the server
// runs.

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "server/identity/identities.h"

namespace quire::server {

// Thread-safe.
class IdentityStore {
 public:
  // An empty `path` means that there is no file (Identities::WithoutFile).
  static absl::StatusOr<std::unique_ptr<IdentityStore>> Create(std::string path,
                                                               const IdentityContext& context);

  std::shared_ptr<const Identities> Get() const;

  // Reads the file again, and logs the result. If the file has an error, the old callers stay.
  // Running requests keep the rights with which they began.
  void Reload();

 private:
  IdentityStore(std::string path, const IdentityContext& context)
      : path_(std::move(path)), context_(context) {}
  absl::Status Load();

  const std::string path_;
  const IdentityContext context_;
  mutable base::Mutex mu_;
  std::shared_ptr<const Identities> identities_ ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::server
