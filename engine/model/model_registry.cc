#include "engine/model/model_registry.h"

#include "absl/strings/str_format.h"

#include "engine/model/architectures/architecture.h"
#include "engine/model/decoder.h"

namespace quire::engine {

absl::StatusOr<std::unique_ptr<Model>> CreateModel(const ModelConfig& config,
                                                   const OpenedModel& files,
                                                   kernels::Backend& backend,
                                                   const StepLimits& limits) {
  const Architecture* architecture = FindArchitecture(config.architecture);
  if (architecture == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: architecture \"%s\" is not supported",
                                                      files.path, config.architecture));
  }
  const TensorNames names =
      (files.gguf ? architecture->gguf_names : architecture->hf_names)(config);
  return CreateDecoder(config, *files.weights, names, backend, limits);
}

}  // namespace quire::engine
