#include "engine/model/gguf_fields.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "files/printable.h"

namespace quire::engine {
namespace {

// Keys that need not be read, since they change no answer. A model uses only the epsilon of its own
// kind of norm, so the other epsilon may be ignored. Only YaRN has betas, and it reads them.
constexpr std::array kChangeNothing = std::to_array<std::string_view>({
    "vocab_size",
    "tensor_data_layout",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
});
// Keys of features that are not supported. A model whose key has the value `absent` does not have
// the feature.
struct AbsentFeature {
  std::string_view key;
  double absent;
  std::string_view feature;
};
constexpr std::array kAbsentFeatures = std::to_array<AbsentFeature>({
    {"expert_count", 0, "mixture of experts"},
    {"expert_used_count", 0, "mixture of experts"},
    {"expert_shared_count", 0, "an expert for every token"},
    {"expert_group_count", 0, "groups of experts"},
    {"expert_group_used_count", 0, "groups of experts"},
    {"expert_weights_scale", 1, "a factor of the experts' weights"},
    {"nextn_predict_layers", 0, "layers that predict later tokens"},
    {"leading_dense_block_count", 0, "layers without a mixture of experts"},
    {"logit_scale", 1, "logit scaling"},
    {"residual_scale", 1, "residual scaling"},
    {"embedding_scale", 1, "embedding scaling"},
    {"attention.max_alibi_bias", 0, "ALiBi"},
    {"attention.clamp_kqv", 0, "clamped Q, K and V"},
    {"attention.sliding_window", 0, "a sliding window"},
    {"attention.causal", 1, "non-causal attention"},
    {"attn_logit_softcapping", 0, "soft-capped attention"},
    {"final_logit_softcapping", 0, "soft-capped logits"},
    {"use_parallel_residual", 0, "parallel residual"},
    {"pooling_type", 0, "pooled embeddings"},
    {"router_logit_softcapping", 0, "soft-capped logits of the router"},
    {"rope.scaling.yarn_ext_factor", 0, "YaRN without its type"},
    {"rope.scaling.yarn_log_multiplier", 0, "YaRN's factor of the logarithm"},
});

// Turns NotFound into InvalidArgument, because a missing key that is required is a fault of the
// file.
absl::Status Required(const absl::Status& status) {
  return absl::IsNotFound(status) ? absl::InvalidArgumentError(status.message()) : status;
}

}  // namespace

std::string GgufFields::Key(std::string_view name) const {
  return absl::StrCat(architecture_, ".", base::ToAbsl(name));
}

std::string GgufFields::Read(std::string_view name) {
  std::string key = Key(name);
  read_.insert(key);
  return key;
}

absl::Status GgufFields::Error(std::string_view name, std::string_view wanted_and_got) const {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s: %s", metadata_.file(), Key(name), wanted_and_got));
}

absl::Status GgufFields::WrongCount(std::string_view name, int64_t num_layers, size_t got) const {
  return Error(name,
               absl::StrFormat("want a number for each of %d layers, got %d", num_layers, got));
}

absl::Status GgufFields::Int(std::string_view name, std::optional<int64_t> fallback, int64_t& out) {
  const std::string key = Read(name);
  const absl::StatusOr<int64_t> value =
      fallback ? metadata_.IntOr(key, *fallback) : metadata_.Int(key);
  if (!value.ok()) return Required(value.status());
  out = *value;
  return absl::OkStatus();
}

absl::Status GgufFields::IntsOfLayers(std::string_view name, std::optional<int64_t> fallback,
                                      int64_t num_layers, std::vector<int64_t>& out) {
  out = {0};
  const files::GgufValue* value = metadata_.Find(Key(name));
  if (value == nullptr || value->type != files::GgufType::kArray) {
    return Int(name, fallback, out.front());
  }
  ASSIGN_OR_RETURN(out, metadata_.Ints(Read(name)));
  if (out.empty() || std::ssize(out) != num_layers) {
    return WrongCount(name, num_layers, out.size());
  }
  if (std::ranges::count(out, out.front()) == num_layers) out.resize(1);
  return absl::OkStatus();
}

absl::Status GgufFields::Float(std::string_view name, std::optional<double> fallback, double& out) {
  const std::string key = Read(name);
  const absl::StatusOr<double> value =
      fallback ? metadata_.FloatOr(key, *fallback) : metadata_.Float(key);
  if (!value.ok()) return Required(value.status());
  out = *value;
  return absl::OkStatus();
}

absl::Status GgufFields::FloatsOfLayers(std::string_view name, int64_t num_layers,
                                        std::vector<double>& out) {
  const std::string key = Read(name);
  out.clear();
  if (!metadata_.Has(key)) return absl::OkStatus();
  ASSIGN_OR_RETURN(out, metadata_.Floats(key));
  return std::ssize(out) == num_layers ? absl::OkStatus()
                                       : WrongCount(name, num_layers, out.size());
}

absl::Status GgufFields::Bool(std::string_view name, bool fallback, bool& out) {
  const std::string key = Read(name);
  out = fallback;
  if (!metadata_.Has(key)) return absl::OkStatus();
  ASSIGN_OR_RETURN(out, metadata_.Bool(key));
  return absl::OkStatus();
}

absl::Status GgufFields::String(std::string_view name, std::string_view fallback,
                                std::string& out) {
  ASSIGN_OR_RETURN(const std::string_view value, metadata_.StringOr(Read(name), fallback));
  out = std::string(value);
  return absl::OkStatus();
}

absl::Status GgufFields::CheckTheRest() const {
  for (const files::GgufValue& value : metadata_.values()) {
    if (!value.key.starts_with(Key("")) || read_.contains(value.key)) continue;
    const std::string_view name = value.key.substr(Key("").size());
    if (std::ranges::find(kChangeNothing, name) != kChangeNothing.end()) continue;
    const auto feature = std::ranges::find(kAbsentFeatures, name, &AbsentFeature::key);
    if (feature == kAbsentFeatures.end()) {
      return Error(files::Printable(name),
                   absl::StrCat("want a key of the ", architecture_,
                                " architecture, got one whose meaning is not known here: the model "
                                "may need a feature that is not supported"));
    }
    double got = 0;
    if (value.type == files::GgufType::kBool) {
      ASSIGN_OR_RETURN(const bool flag, metadata_.Bool(value.key));
      got = flag ? 1 : 0;
    } else {
      ASSIGN_OR_RETURN(got, metadata_.Float(value.key));
    }
    if (got == feature->absent) continue;
    return Error(name, absl::StrFormat("want %g, got %g: %s is not supported", feature->absent, got,
                                       feature->feature));
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
