#include "engine/model/model_registry.h"

#include <string_view>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/decoder.h"
#include "engine/model/decoder_tensors.h"

namespace quire::engine {

namespace {

absl::StatusOr<TensorNames> NamesOf(const ModelConfig& config, const files::OpenedModel& files) {
  const Architecture* architecture = FindArchitecture(config.architecture);
  if (architecture == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: architecture \"%s\" is not supported",
                                                      files.path, config.architecture));
  }
  return (files.gguf ? architecture->gguf_names : architecture->hf_names)(config.layers[0]);
}

}  // namespace

absl::Status CheckModel(const ModelConfig& config, const files::OpenedModel& files) {
  ASSIGN_OR_RETURN(const TensorNames names, NamesOf(config, files));
  const DecoderTensors tensors = FindTensors(
      config, names, [&](std::string_view name) { return files.weights->Find(name) != nullptr; });
  return CheckTensors(tensors, *files.weights, names, config.architecture);
}

absl::StatusOr<std::unique_ptr<Model>> CreateModel(const ModelConfig& config,
                                                   const files::OpenedModel& files,
                                                   kernels::Backend& backend,
                                                   const StepLimits& limits) {
  ASSIGN_OR_RETURN(const TensorNames names, NamesOf(config, files));
  return CreateDecoder(config, *files.weights, names, backend, limits);
}

}  // namespace quire::engine
