#include "engine/model/model_registry.h"

#include "absl/strings/str_format.h"

#include "engine/model/llama.h"

namespace quire::engine {

absl::StatusOr<std::unique_ptr<Model>> CreateModel(const ModelConfig& config,
                                                   const OpenedModel& files,
                                                   kernels::Backend& backend,
                                                   const StepLimits& limits) {
  if (config.architecture == "llama") {
    const TensorNaming naming = files.gguf ? TensorNaming::kGguf : TensorNaming::kHuggingFace;
    return CreateLlama(config, *files.weights, naming, backend, limits);
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: architecture \"%s\" is not supported; supported: llama", files.path,
                      config.architecture));
}

}  // namespace quire::engine
