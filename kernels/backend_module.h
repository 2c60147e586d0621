#pragma once

// Backends in shared libraries, which a program opens at run time. So the program needs no driver
// and no library of a device, and one package serves hosts with and without a GPU.
//
// A module exports one C function, `quire_backend_module`, of type BackendModuleFunction. The
// backend "cuda" is in libquire-cuda.so, beside the program or in ../lib/quire from there.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/backend.h"
#include "kernels/backend_registry.h"

namespace quire::kernels {

// Writes a line to the program's log at the debug level. A module has no log of its own.
using DebugLog = void(std::string_view message);

// The part of a module that the program calls.
struct BackendModule {
  // Identifies the interface for which the module was built. The first member, because the program
  // reads it before it knows that the other members are as it expects.
  const char* build_id = nullptr;
  // `log` is null where the program logs no debug lines.
  absl::StatusOr<std::unique_ptr<Backend>> (*create)(const BackendOptions& options,
                                                     DebugLog* log) = nullptr;
};
using BackendModuleFunction = const BackendModule*();

// Returns the id of this build, such as "0.1.0-0123456789abcdef".
const char* BuildId();

// Returns the folders in which modules may lie: that of the running program, and ../lib/quire from
// there.
std::vector<std::filesystem::path> ModuleFolders();

// Opens the module of `backend` ("cuda"), a file in one of `folders`, the first of which wins. The
// module stays open until the process ends. Returns NotFound if no folder has the file, and
// FailedPrecondition if the file cannot be opened, is no module, or belongs to another build. The
// error says what to do.
absl::StatusOr<const BackendModule*> OpenBackendModule(
    const std::string& backend, const std::vector<std::filesystem::path>& folders);

}  // namespace quire::kernels
