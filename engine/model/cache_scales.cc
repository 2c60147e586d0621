#include "engine/model/cache_scales.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "engine/model/architectures/architecture.h"
#include "engine/model/decoder_tensors.h"
#include "files/printable.h"
#include "kernels/quant/dequantize.h"

namespace quire::engine {
namespace {

using kernels::CacheScales;

absl::Status Error(const files::OpenedModel& model, std::string_view tensor,
                   const std::string& wanted_and_got) {
  return absl::InvalidArgumentError(
      absl::StrCat(model.path, ": tensor ", files::Printable(tensor), ": ", wanted_and_got));
}

// The scales that a tensor is, by its name.
struct Place {
  size_t layer = 0;
  bool of_k = false, of_v = false;
};

// Returns the places of all names that scales may have.
std::map<std::string, Place, std::less<>> PlacesOf(const TensorNames& names, size_t num_layers) {
  const std::string_view output = names.o;
  const std::string attention(output.substr(0, output.rfind('.')));
  std::map<std::string, Place, std::less<>> places;
  for (size_t layer = 0; layer < num_layers; ++layer) {
    const auto add = [&](std::string_view name, const char* suffix, bool of_k, bool of_v) {
      places[absl::StrCat(names.prefix, names.layer_prefix, layer, ".", base::ToAbsl(name),
                          suffix)] = {.layer = layer, .of_k = of_k, .of_v = of_v};
    };
    std::vector<std::string> modules = {attention, attention + ".attn"};
    for (const char* projection : {names.k, names.v, names.kv, names.qkv}) {
      if (projection != nullptr) modules.emplace_back(projection);
    }
    for (const std::string& module : modules) {
      add(module, ".k_scale", true, false);
      add(module, ".v_scale", false, true);
      add(module, ".kv_scale", true, true);
    }
    if (names.k != nullptr) add(names.k, ".output_scale", true, false);
    if (names.v != nullptr) add(names.v, ".output_scale", false, true);
  }
  return places;
}

absl::StatusOr<float> ReadScale(const files::OpenedModel& model, const files::TensorInfo& tensor) {
  if (files::NumElements(tensor.shape) != 1) {
    return Error(model, tensor.name,
                 "want one scale for a layer, got " + files::ShapeToString(tensor.shape));
  }
  if (tensor.type > kernels::WeightType::kBF16) {
    return Error(model, tensor.name,
                 absl::StrCat("want a scale in F32, F16 or BF16, got ",
                              base::ToAbsl(kernels::Traits(tensor.type).name)));
  }
  std::vector<float> scale(1);
  RETURN_IF_ERROR(kernels::Dequantize(
      {.type = tensor.type, .rows = 1, .cols = 1, .bytes = tensor.bytes}, 0, 1, scale));
  if (scale[0] >= CacheScales::kSmallest && scale[0] <= CacheScales::kLargest) return scale[0];
  return Error(model, tensor.name,
               absl::StrFormat("want a scale from %g to %g, got %g", CacheScales::kSmallest,
                               CacheScales::kLargest, scale[0]));
}

}  // namespace

absl::Status ReadCacheScales(const files::OpenedModel& model, ModelConfig& config) {
  if (!model.hf) return absl::OkStatus();
  const TensorNames names =
      InSpellingOfFile(FindArchitecture(config.architecture)->hf_names(config.layers[0]),
                       HasTensorIn(*model.weights));
  const auto places = PlacesOf(names, config.layers.size());
  const auto is_needed = [&](std::string_view name) {
    return IsCacheScale(name) && std::ranges::none_of(names.left_out, [&](const char* begin) {
             return begin != nullptr && name.starts_with(begin);
           });
  };
  for (const files::UnusableTensor& tensor : model.weights->unusable_tensors()) {
    if (!is_needed(tensor.name) && !places.contains(tensor.name)) continue;
    return Error(model, tensor.name, "want a scale in F32, F16 or BF16, got " + tensor.type_name);
  }
  struct Names {
    std::string k, v;
  };
  std::vector<Names> found(config.layers.size());
  for (const files::TensorInfo& tensor : model.weights->tensors()) {
    const auto place = places.find(tensor.name);
    if (place == places.end()) {
      if (!is_needed(tensor.name)) continue;
      return Error(model, tensor.name,
                   "want a scale of the keys or the values of a layer, got one whose place is not "
                   "known: serve the model with another --kv_dtype than fp8");
    }
    ASSIGN_OR_RETURN(const float scale, ReadScale(model, tensor));
    const auto& [layer, of_k, of_v] = place->second;
    CacheScales& scales = config.layers[layer].attention.cache_scales;
    const auto set = [&](std::string& name, float& of_cache) -> absl::Status {
      if (!name.empty()) {
        return Error(model, tensor.name, "want one such scale for a layer, got " + name + " too");
      }
      name = tensor.name;
      of_cache = scale;
      return absl::OkStatus();
    };
    if (of_k) RETURN_IF_ERROR(set(found[layer].k, scales.k));
    if (of_v) RETURN_IF_ERROR(set(found[layer].v, scales.v));
  }
  for (const auto& [k, v] : found) {
    if (k.empty() == v.empty()) continue;
    return Error(model, k.empty() ? v : k,
                 absl::StrCat("want a scale of the layer's ", k.empty() ? "keys" : "values",
                              " too, got none"));
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
