#include "kernels/backend_registry.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/cpu_backend.h"

namespace quire::kernels {
namespace {

std::map<std::string, BackendFactory>& Registered() {
  static auto* const registered = new std::map<std::string, BackendFactory>;
  return *registered;
}

}  // namespace

void RegisterBackend(std::string name, BackendFactory factory) {
  Registered()[std::move(name)] = std::move(factory);
}

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) {
  if (options.name == "auto" || options.name == "cpu") {
    return cpu::CreateCpuBackend({.isa = options.cpu_isa,
                                  .num_threads = options.num_threads,
                                  .pack_weights = options.pack_weights});
  }
  if (const auto it = Registered().find(options.name); it != Registered().end()) {
    return it->second(options);
  }
  std::string names = "auto|cpu";
  for (const auto& [name, factory] : Registered()) absl::StrAppend(&names, "|", name);
  return absl::InvalidArgumentError(
      absl::StrCat("backend: want one of ", names, ", which this build has, got ", options.name));
}

}  // namespace quire::kernels
