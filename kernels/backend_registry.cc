#include "kernels/backend_registry.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

#include "base/logging.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/backend_module.h"
#include "kernels/cpu/cpu_backend.h"

namespace quire::kernels {
namespace {

using base::Log;
using base::LogLevel;

absl::StatusOr<std::unique_ptr<Backend>> CreateCpu(const BackendOptions& options) {
  return cpu::CreateCpuBackend({.isa = options.cpu_isa,
                                .num_threads = options.num_threads,
                                .pack_weights = options.pack_weights});
}

void LogDebug(std::string_view message) { Log(LogLevel::kDebug, "backend", message); }

absl::StatusOr<std::unique_ptr<Backend>> CreateFromModule(const std::string& backend,
                                                          const BackendOptions& options) {
  ASSIGN_OR_RETURN(const BackendModule* const module, OpenBackendModule(backend, ModuleFolders()));
  return module->create(options, base::LogEnabled(LogLevel::kDebug) ? &LogDebug : nullptr);
}

absl::StatusOr<std::unique_ptr<Backend>> CreateBest(const BackendOptions& options) {
  absl::StatusOr<std::unique_ptr<Backend>> cuda = CreateFromModule("cuda", options);
  if (cuda.ok()) {
    Log(LogLevel::kInfo, "backend", "a GPU computes",
        {{"backend", "cuda"}, {"gpu", (*cuda)->info().isa_path}});
    return cuda;
  }
  // A flag that only CUDA has shows that a GPU is wanted.
  const bool is_wanted = options.cuda != CudaExperiments{};
  if (is_wanted && absl::IsInvalidArgument(cuda.status())) return cuda.status();
  // Most hosts without a GPU do not have the module either.
  const LogLevel level = absl::IsNotFound(cuda.status()) ? LogLevel::kDebug : LogLevel::kInfo;
  Log(level, "backend", "the CPU computes",
      {{"backend", "cpu"}, {"because", std::string(cuda.status().message())}});
  return CreateCpu(options);
}

// Reads the n of "cuda:n".
absl::StatusOr<int> ReadOrdinal(std::string_view text) {
  int ordinal = -1;
  const bool is_plain = text.size() <= 2 && text.find_first_not_of("0123456789") == text.npos;
  if (!is_plain || !absl::SimpleAtoi(base::ToAbsl(text), &ordinal) || ordinal > kMaxDeviceOrdinal) {
    return absl::InvalidArgumentError(absl::StrCat("backend: want a GPU in 0..", kMaxDeviceOrdinal,
                                                   " after the colon, got \"", base::ToAbsl(text),
                                                   "\""));
  }
  return ordinal;
}

}  // namespace

absl::StatusOr<CudaExperiments> ReadCudaExperiments(std::string_view list) {
  static constexpr std::pair<absl::string_view, bool CudaExperiments::*> kExperiments[] = {
      {"wgmma_attention", &CudaExperiments::wgmma_attention},
      {"wgmma_experts", &CudaExperiments::wgmma_experts},
      {"shared_prefix", &CudaExperiments::shared_prefix},
      {"fp8_products", &CudaExperiments::fp8_products},
      {"alibi_skip", &CudaExperiments::alibi_skip}};
  CudaExperiments read;
  if (list.empty()) return read;
  for (const absl::string_view name : absl::StrSplit(base::ToAbsl(list), ',')) {
    const auto* const found =
        std::ranges::find_if(kExperiments, [&](const auto& known) { return known.first == name; });
    if (found == std::end(kExperiments)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "cuda_experiments: want names of wgmma_attention, wgmma_experts, shared_prefix, "
          "fp8_products and alibi_skip with commas between them, got \"%s\"",
          name));
    }
    read.*found->second = true;
  }
  return read;
}

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) {
  if (options.name == "auto") return CreateBest(options);
  if (options.name == "cpu") return CreateCpu(options);
  const size_t colon = options.name.find(':');
  const std::string backend = options.name.substr(0, colon);
  if (backend != "cuda" && backend != "cuda-emulated") {
    return absl::InvalidArgumentError(
        absl::StrCat("backend: want auto, cpu, cuda or cuda:n, got ", options.name));
  }
  BackendOptions device = options;
  if (colon != std::string::npos) {
    ASSIGN_OR_RETURN(device.device_ordinal,
                     ReadOrdinal(std::string_view(options.name).substr(colon + 1)));
  }
  return CreateFromModule(backend, device);
}

}  // namespace quire::kernels
