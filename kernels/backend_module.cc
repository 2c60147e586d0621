#include "kernels/backend_module.h"

#include <cstring>
#include <dlfcn.h>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "kernels/build_id.h"

namespace quire::kernels {

const char* BuildId() { return QUIRE_BUILD_ID; }

std::vector<std::filesystem::path> ModuleFolders() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const std::filesystem::path folder = program.parent_path();
  return {folder, folder.parent_path() / "lib" / "quire"};
}

absl::StatusOr<const BackendModule*> OpenBackendModule(
    const std::string& backend, const std::vector<std::filesystem::path>& folders) {
  const std::string name = absl::StrCat("libquire-", backend, ".so");
  std::filesystem::path path;
  for (const std::filesystem::path& folder : folders) {
    std::error_code error;
    if (std::filesystem::exists(folder / name, error)) {
      path = folder / name;
      break;
    }
  }
  if (path.empty()) {
    const auto append = [](std::string* out, const auto& folder) { out->append(folder.string()); };
    return absl::NotFoundError(absl::StrCat(
        "backend ", backend, ": want ", name, ", the module of this backend, in ",
        absl::StrJoin(folders, " or ", append),
        ", got no such file; install the module that was built with this program, or take "
        "--backend cpu"));
  }
  const std::string prefix = absl::StrCat("backend ", backend, ": ", path.string());
  // Another module may have the same names, so each sees its own first and gives none to others.
  void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        prefix, ": want a module that can be opened, got: ", ::dlerror(),
        "; install the libraries that it names (for cuda: CUDA 13's cuBLAS), or the module again"));
  }
  const auto function =
      reinterpret_cast<BackendModuleFunction*>(::dlsym(module, "quire_backend_module"));
  if (function == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(prefix, ": want a backend module, got another library: ", ::dlerror()));
  }
  const BackendModule* const found = function();
  if (std::strcmp(found->build_id, BuildId()) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(prefix, ": want the module of build ", BuildId(), ", as this program, got ",
                     found->build_id, "; install program and module from one package"));
  }
  return found;
}

}  // namespace quire::kernels
