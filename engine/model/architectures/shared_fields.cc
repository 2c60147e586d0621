#include "engine/model/architectures/shared_fields.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "engine/model/model_config_reader.h"

namespace quire::engine {

absl::Status ReadEvenHeadDim(const HfFields& fields, const char* heads_key, const char* width_key,
                             ModelDraft& draft) {
  const int64_t heads = draft.every.attention.num_heads;
  if (heads <= 0 || draft.hidden_size % heads != 0) {
    return fields.Wrong(heads_key, std::string("a divisor of ") + width_key);
  }
  draft.every.attention.set_head_dim(draft.hidden_size / heads);
  return absl::OkStatus();
}

absl::Status ReadUnscaledTheta(const HfFields& fields, const char* theta_key, ModelDraft& draft) {
  double& theta = draft.ropes[0].theta;
  RETURN_IF_ERROR(fields.Float(theta_key, 10000.0, theta));
  RETURN_IF_ERROR(fields.WantNull({"rope_scaling"}));
  ASSIGN_OR_RETURN(const std::optional<HfFields> rope, fields.Object("rope_parameters"));
  if (!rope) return absl::OkStatus();
  std::string type;
  RETURN_IF_ERROR(rope->String("rope_type", "default", type));
  if (type != "default") return rope->Wrong("rope_type", "default");
  return rope->Float("rope_theta", theta, theta);
}

absl::Status ReadGelu(const HfFields& fields, const char* key, std::string_view fallback,
                      ModelDraft& draft) {
  std::string name;
  RETURN_IF_ERROR(fields.String(key, fallback, name));
  if (name == "gelu") {
    draft.every.feed_forward.activation = kernels::Activation::kGelu;
  } else if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh") {
    draft.every.feed_forward.activation = kernels::Activation::kGeluTanh;
  } else {
    return fields.Wrong(key, "gelu, gelu_new, gelu_fast or gelu_pytorch_tanh");
  }
  return absl::OkStatus();
}

absl::Status ReadLayerPatterns(const HfFields& fields, const kernels::AttentionPattern& pattern,
                               const std::function<bool(int64_t)>& has_pattern, ModelDraft& draft) {
  const bool chunks = pattern.rule == kernels::AttentionPattern::Rule::kChunk;
  const char* const name = chunks ? "chunked_attention" : "sliding_attention";
  const int64_t num_layers = draft.num_hidden_layers;
  const nlohmann::json* types = fields.Find("layer_types");
  // Complete() reports a number of layers that is out of range.
  if (num_layers < 1 || num_layers > kMaxLayers) return absl::OkStatus();
  if (types != nullptr && (!types->is_array() || std::ssize(*types) != num_layers)) {
    return fields.Wrong("layer_types", "one for each of num_hidden_layers");
  }
  std::vector<bool> restricted(static_cast<size_t>(num_layers), false);
  for (int64_t i = 0; i < num_layers; ++i) {
    bool here = !pattern.sees_all() && has_pattern(i);
    if (types != nullptr) {
      const nlohmann::json& type = (*types)[static_cast<size_t>(i)];
      here = type == name;
      if (!here && type != "full_attention") {
        return fields.Wrong("layer_types", absl::StrCat("full_attention and ", name));
      }
    }
    restricted[static_cast<size_t>(i)] = here;
  }
  draft.Vary([pattern, restricted = std::move(restricted)](int64_t index, LayerSpec& layer) {
    if (restricted[static_cast<size_t>(index)]) layer.attention.pattern = pattern;
  });
  return absl::OkStatus();
}

absl::StatusOr<std::vector<bool>> ReadRotatingLayers(const HfFields& fields, bool empty_is_none,
                                                     const ModelDraft& draft) {
  const int64_t num_layers = draft.num_hidden_layers;
  int64_t interval = 0;
  RETURN_IF_ERROR(fields.Int("no_rope_layer_interval", kNoRopeInterval, interval));
  if (interval < 1) return fields.Wrong("no_rope_layer_interval", "at least 1");
  if (num_layers < 1 || num_layers > kMaxLayers) return std::vector<bool>();
  std::vector<bool> rotates(static_cast<size_t>(num_layers));
  // Despite its name, no_rope_layers has a 1 for each layer that rotates.
  const nlohmann::json* list = fields.Find("no_rope_layers");
  if (list != nullptr && empty_is_none && list->is_array() && list->empty()) list = nullptr;
  if (list != nullptr && (!list->is_array() || std::ssize(*list) < num_layers)) {
    return fields.Wrong("no_rope_layers", "a number for each of num_hidden_layers");
  }
  for (size_t i = 0; i < rotates.size(); ++i) {
    rotates[i] = (static_cast<int64_t>(i) + 1) % interval != 0;
    if (list == nullptr) continue;
    if ((*list)[i] != 0 && (*list)[i] != 1) return fields.Wrong("no_rope_layers", "0 and 1 alone");
    rotates[i] = (*list)[i] == 1;
  }
  return rotates;
}

absl::Status ReadTextOfImageModel(const HfFields& fields, bool tied,
                                  const std::function<absl::Status(const HfFields&)>& read,
                                  ModelDraft& draft) {
  draft.has_images = true;
  ASSIGN_OR_RETURN(const std::optional<HfFields> text, fields.Object("text_config"));
  if (!text) return fields.Wrong("text_config", "an object");
  RETURN_IF_ERROR(read(*text));
  const bool inner = draft.tie_word_embeddings;
  RETURN_IF_ERROR(fields.Bool("tie_word_embeddings", tied, draft.tie_word_embeddings));
  if (!text->Has("tie_word_embeddings") || inner == draft.tie_word_embeddings) {
    return absl::OkStatus();
  }
  return text->Wrong("tie_word_embeddings",
                     draft.tie_word_embeddings ? "true, as outside" : "false, as outside");
}

}  // namespace quire::engine
