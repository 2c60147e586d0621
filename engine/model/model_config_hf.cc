// Reads a ModelConfig from the config.json of Hugging Face transformers.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/decoder_tensors.h"
#include "engine/model/hf_fields.h"
#include "engine/model/hf_quantization.h"
#include "engine/model/model_config_reader.h"

namespace quire::engine {
namespace {

using nlohmann::json;

std::string SupportedClasses() {
  std::string names;
  for (const Architecture* architecture : Architectures()) {
    for (const std::string_view hf_class : architecture->hf_classes) {
      absl::StrAppend(&names, names.empty() ? "" : ", ", base::ToAbsl(hf_class));
    }
  }
  return names;
}

absl::StatusOr<std::string> ReadClass(const HfFields& fields) {
  const json* names = fields.Find("architectures");
  const bool one =
      names != nullptr && names->is_array() && names->size() == 1 && (*names)[0].is_string();
  if (one) {
    const std::string hf_class = (*names)[0];
    if (FindArchitectureOfHfClass(hf_class) != nullptr) return hf_class;
  }
  return fields.Wrong("architectures", "one of: " + SupportedClasses());
}

// Returns true if the file has a head that differs from the embedding. transformers uses such a
// head even if tie_word_embeddings is true.
bool HasAnotherHead(const TensorNames& architecture_names, const files::WeightMap& weights) {
  const TensorNames names = InSpellingOfFile(architecture_names, HasTensorIn(weights));
  const files::TensorInfo* head = weights.Find(absl::StrCat(names.head, ".weight"));
  const files::TensorInfo* embedding =
      weights.Find(absl::StrCat(names.prefix, names.embedding, ".weight"));
  if (head == nullptr || embedding == nullptr) return false;
  return head->type != embedding->type || head->shape != embedding->shape ||
         !std::ranges::equal(head->bytes, embedding->bytes);
}

}  // namespace

absl::StatusOr<ModelConfig> ReadHfModelConfig(const json& object, std::string_view file,
                                              const files::WeightMap& weights) {
  const std::string where(file);
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: want a JSON object, got %s", where, object.type_name()));
  }
  const HfFields fields(object, where);
  ASSIGN_OR_RETURN(const std::string hf_class, ReadClass(fields));
  const Architecture& architecture = *FindArchitectureOfHfClass(hf_class);
  RETURN_IF_ERROR(CheckHfQuantization(fields));
  ModelDraft draft;
  draft.architecture = std::string(architecture.name);
  RETURN_IF_ERROR(fields.String("_name_or_path", "", draft.name));
  RETURN_IF_ERROR(architecture.read_hf(fields, hf_class, draft));
  draft.weight_type = DominantWeightType(weights);
  ASSIGN_OR_RETURN(ModelConfig config, std::move(draft).Complete(where));
  const TensorNames names = architecture.hf_names(config.layers[0]);
  if (HasAnotherHead(names, weights)) config.tie_word_embeddings = false;
  return config;
}

}  // namespace quire::engine
