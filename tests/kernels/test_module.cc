// A backend module without a backend. Its build id is that of this build and BUILD_ID_SUFFIX.

#include "absl/strings/str_cat.h"

#include "kernels/backend_module.h"
#include "kernels/build_id.h"

namespace {

absl::StatusOr<std::unique_ptr<quire::kernels::Backend>> Create(
    const quire::kernels::BackendOptions& options, quire::kernels::DebugLog* log) {
  if (log != nullptr) log("a line of the module");
  return absl::UnimplementedError(absl::StrCat("called with ", options.num_threads, " threads"));
}

}  // namespace

extern "C" const quire::kernels::BackendModule* quire_backend_module() {
  static constexpr quire::kernels::BackendModule kModule{.build_id = QUIRE_BUILD_ID BUILD_ID_SUFFIX,
                                                         .create = Create};
  return &kModule;
}
