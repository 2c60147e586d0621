#include "engine/model/hf_quantization.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "nlohmann/json.hpp"

#include "base/status_macros.h"

namespace quire::engine {
namespace {

using nlohmann::json;

// A key of an object and its values that do not change what a weight is. A key without such values
// may have any value.
struct AllowedKey {
  std::string_view name;
  std::string_view values;  // a JSON array; empty: any
};

constexpr std::string_view kBlocks = "[null, [128, 128]]";

// kv_cache_* and activation_scheme: see CheckHfQuantization. scale_fmt says which float32 numbers
// the scales are, and dequantize where transformers computes.
constexpr AllowedKey kFp8[] = {{"quant_method", ""},
                               {"fmt", R"([null, "e4m3"])"},
                               {"weight_block_size", kBlocks},
                               {"scale_fmt", R"([null, "float", "ue8m0"])"},
                               {"dequantize", "[null, true, false]"},
                               {"activation_scheme", ""},
                               {"modules_to_not_convert", ""},
                               {"ignored_layers", ""},
                               {"kv_cache_scheme", ""}};
constexpr AllowedKey kCompressedTensors[] = {
    {"quant_method", ""},
    {"format", R"(["float-quantized", "naive-quantized"])"},
    {"quantization_status", R"([null, "compressed", "frozen"])"},
    {"config_groups", ""},    // CheckGroups
    {"sparsity_config", ""},  // CheckDense
    {"transform_config", "[null, {}]"},
    {"ignore", ""},
    {"kv_cache_scheme", ""},
    {"global_compression_ratio", ""},
    {"version", ""}};
constexpr AllowedKey kModelOpt[] = {{"quant_method", ""},
                                    {"quant_algo", R"(["FP8"])"},
                                    {"config_groups", ""},  // CheckGroups
                                    {"ignore", ""},
                                    {"exclude_modules", ""},
                                    {"kv_cache_quant_algo", ""},
                                    {"kv_cache_scheme", ""},
                                    {"producer", ""}};
constexpr AllowedKey kGroup[] = {{"weights", ""},  // kGroupWeights
                                 {"targets", ""},
                                 {"input_activations", ""},
                                 {"output_activations", "[null]"},
                                 {"format", R"([null, "float-quantized", "naive-quantized"])"}};
// An observer finds scales when a model is quantised.
constexpr AllowedKey kGroupWeights[] = {{"num_bits", "[8]"},
                                        {"type", R"(["float"])"},
                                        {"strategy", R"([null, "tensor", "channel", "block"])"},
                                        {"symmetric", "[null, true]"},
                                        {"dynamic", "[null, false]"},
                                        {"group_size", "[null]"},
                                        {"block_structure", kBlocks},
                                        {"actorder", "[null]"},
                                        {"observer", ""},
                                        {"observer_kwargs", ""},
                                        {"scale_dtype", ""},  // the file has it too
                                        {"zp_dtype", ""}};    // a symmetric type has no zero points

absl::Status CheckKeys(const HfFields& fields, std::span<const AllowedKey> allowed) {
  for (const auto& [key, value] : fields.object().items()) {
    if (std::ranges::find(allowed, key, &AllowedKey::name) == allowed.end()) {
      return fields.Wrong(key, "no such key in the quantisation of fp8 weights");
    }
  }
  for (const AllowedKey& key : allowed) {
    if (key.values.empty()) continue;
    const json values = json::parse(key.values), *const found = fields.Find(key.name.data());
    const json value = found == nullptr ? json() : *found;
    if (std::ranges::find(values, value) == values.end()) {
      return fields.Wrong(key.name, "one of " + std::string(key.values));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckGroups(const HfFields& fields) {
  ASSIGN_OR_RETURN(const std::optional<HfFields> groups, fields.Object("config_groups"));
  if (!groups) return absl::OkStatus();
  for (const auto& [name, unused] : groups->object().items()) {
    ASSIGN_OR_RETURN(const std::optional<HfFields> group, groups->Object(name.c_str()));
    if (!group) return groups->Wrong(name, "an object");
    RETURN_IF_ERROR(CheckKeys(*group, kGroup));
    ASSIGN_OR_RETURN(const std::optional<HfFields> weights, group->Object("weights"));
    if (!weights) return group->Wrong("weights", "an object");
    RETURN_IF_ERROR(CheckKeys(*weights, kGroupWeights));
  }
  return absl::OkStatus();
}

// Accepts a sparsity_config of weights that are stored whole.
absl::Status CheckDense(const HfFields& fields) {
  ASSIGN_OR_RETURN(const std::optional<HfFields> sparsity, fields.Object("sparsity_config"));
  if (!sparsity || sparsity->object().empty()) return absl::OkStatus();
  std::string format;
  RETURN_IF_ERROR(sparsity->String("format", "", format));
  return format == "dense" ? absl::OkStatus() : sparsity->Wrong("format", "\"dense\"");
}

}  // namespace

absl::Status CheckHfQuantization(const HfFields& fields) {
  ASSIGN_OR_RETURN(const std::optional<HfFields> config, fields.Object("quantization_config"));
  if (!config) return absl::OkStatus();
  const json* const method = config->Find("quant_method");
  const std::string name =
      method != nullptr && method->is_string() ? method->get<std::string>() : "";
  if (name == "fp8") return CheckKeys(*config, kFp8);
  if (name == "compressed-tensors" || name == "modelopt") {
    RETURN_IF_ERROR(CheckKeys(
        *config, name == "modelopt" ? std::span<const AllowedKey>(kModelOpt) : kCompressedTensors));
    RETURN_IF_ERROR(CheckDense(*config));
    return CheckGroups(*config);
  }
  return fields.Error("quantization_config",
                      "weights in F32, F16, BF16 or, by the methods fp8, compressed-tensors and "
                      "modelopt, e4m3 (other quantised ones are read from GGUF files)",
                      name.empty() ? "a quantisation" : name);
}

}  // namespace quire::engine
