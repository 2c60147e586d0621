#include "engine/model/architectures/shared_fields.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

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
  draft.every.attention.head_dim = draft.hidden_size / heads;
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

absl::Status ReadLayerWindows(const HfFields& fields, int64_t window,
                              const std::function<bool(int64_t)>& slides, ModelDraft& draft) {
  const int64_t num_layers = draft.num_hidden_layers;
  const nlohmann::json* types = fields.Find("layer_types");
  // Complete() reports a number of layers that is out of range.
  if (num_layers < 1 || num_layers > kMaxLayers) return absl::OkStatus();
  if (types != nullptr && (!types->is_array() || std::ssize(*types) != num_layers)) {
    return fields.Wrong("layer_types", "one for each of num_hidden_layers");
  }
  std::vector<bool> slide(static_cast<size_t>(num_layers), false);
  for (int64_t i = 0; i < num_layers; ++i) {
    bool slides_here = window != 0 && slides(i);
    if (types != nullptr) {
      const nlohmann::json& type = (*types)[static_cast<size_t>(i)];
      slides_here = type == "sliding_attention";
      if (!slides_here && type != "full_attention") {
        return fields.Wrong("layer_types", "full_attention and sliding_attention");
      }
    }
    slide[static_cast<size_t>(i)] = slides_here;
  }
  draft.Vary([window, slide = std::move(slide)](int64_t index, LayerSpec& layer) {
    if (slide[static_cast<size_t>(index)]) {
      layer.attention.pattern = kernels::AttentionPattern::Window(window);
    }
  });
  return absl::OkStatus();
}

}  // namespace quire::engine
