#include "tools/model_report.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

#include "base/json.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "engine/frontend/tokenizer_loader.h"
#include "engine/model/model_config_reader.h"
#include "engine/model/model_registry.h"
#include "files/ggml_types.h"
#include "files/printable.h"
#include "kernels/ops/paged_attention.h"

namespace quire::tools {
namespace {

using files::OpenedModel;
using files::Printable;
using nlohmann::json;

constexpr int64_t kKvElementBytes = 2;  // f16

int64_t NumElements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::string ReadArchitecture(const OpenedModel& model) {
  if (model.gguf) return std::string(model.gguf->StringOr("general.architecture", "").value_or(""));
  if (!model.hf) return "";
  const auto found = model.hf->config.find("architectures");
  const bool listed = found != model.hf->config.end() && found->is_array() && !found->empty() &&
                      (*found)[0].is_string();
  return listed ? (*found)[0].get<std::string>() : "";
}

std::string ReadName(const OpenedModel& model) {
  if (model.gguf) return std::string(model.gguf->StringOr("general.name", "").value_or(""));
  return model.file_name;
}

// Returns the kind of the file's tokenizer, or "" when the file has no tokenizer.
std::string ReadTokenizerKind(const OpenedModel& model) {
  if (model.gguf) {
    const std::string_view kind = model.gguf->StringOr("tokenizer.ggml.model", "").value_or("");
    const std::string_view pre = model.gguf->StringOr("tokenizer.ggml.pre", "").value_or("");
    if (pre.empty()) return std::string(kind);
    return absl::StrFormat("%s, pre-tokenizer %s", kind, pre);
  }
  if (!model.hf || model.hf->tokenizer_json.empty()) return "";
  const auto parsed = base::ParseJson(model.hf->tokenizer_json, "tokenizer.json");
  const auto found =
      parsed.ok() && parsed->is_object() ? parsed->find("model") : json::const_iterator();
  if (!parsed.ok() || !parsed->is_object() || found == parsed->end() || !found->is_object())
    return "tokenizer.json";
  const auto type = found->find("type");
  return type != found->end() && type->is_string() ? "tokenizer.json, " + type->get<std::string>()
                                                   : "tokenizer.json";
}

void ReadTensors(const files::WeightMap& weights, ModelReport& report) {
  const auto add = [&](const std::string& name, std::string_view type,
                       const std::vector<int64_t>& shape, int64_t num_bytes) {
    TypeUse& use = report.types[std::string(type)];
    ++use.num_tensors;
    use.num_bytes += num_bytes;
    use.num_parameters += NumElements(shape);
    report.tensors.push_back(
        {.name = name, .type = std::string(type), .shape = shape, .num_bytes = num_bytes});
  };
  for (const files::TensorInfo& tensor : weights.tensors()) {
    add(tensor.name, kernels::Traits(tensor.type).name, tensor.shape,
        static_cast<int64_t>(tensor.bytes.size()));
  }
  for (const files::UnusableTensor& tensor : weights.unusable_tensors()) {
    add(tensor.name, tensor.type_name, tensor.shape, tensor.num_bytes);
  }
}

// Reads the tokenizer and the chat template. Returns an error when the server could not use the
// tokenizer.
absl::Status ReadText(const OpenedModel& model, ModelReport& report) {
  report.tokenizer = ReadTokenizerKind(model);
  report.tokenizer_warning = engine::TokenizerWarning(model);
  const auto source = model.ChatTemplate();
  report.has_chat_template = !source.ok() || !source->empty();
  ASSIGN_OR_RETURN(const auto tokenizer, engine::LoadTokenizer(model));
  report.num_tokens = tokenizer->vocab_size();
  report.bos_id = tokenizer->bos_id();
  report.end_ids = tokenizer->end_ids();
  const absl::Status chat = engine::LoadChatTemplate(model, *tokenizer).status();
  if (!chat.ok()) report.chat_template_error = std::string(chat.message());
  return absl::OkStatus();
}

// Writes 1234567 as "1,234,567".
std::string Grouped(int64_t number) {
  std::string text = absl::StrCat(number);
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3)
    text.insert(static_cast<size_t>(at), ",");
  return text;
}

std::string Bytes(int64_t bytes) {
  const auto amount = static_cast<double>(bytes);
  if (bytes < (int64_t{1} << 10)) return absl::StrFormat("%d bytes", bytes);
  if (bytes < (int64_t{1} << 20)) return absl::StrFormat("%.1f KiB", amount / (1 << 10));
  if (bytes < (int64_t{1} << 30)) return absl::StrFormat("%.1f MiB", amount / (1 << 20));
  return absl::StrFormat("%.2f GiB", amount / (1 << 30));
}

std::string Tensors(int64_t count) {
  return absl::StrCat(count, count == 1 ? " tensor" : " tensors");
}

// Collects aligned "label  value" lines.
class Lines {
 public:
  void Add(std::string_view label, const std::string& value) {
    absl::StrAppendFormat(&text_, "  %-14s %s\n", label, value);
  }
  std::string& text() { return text_; }

 private:
  std::string text_;
};

std::string PositionsText(const engine::ModelConfig& config) {
  if (config.alibi_bias_max) {
    return absl::StrFormat("ALiBi, largest exponent %g", *config.alibi_bias_max);
  }
  if (config.ropes.empty()) return "learned";
  const engine::RopeConfig& rope = config.ropes[0];
  constexpr const char* kScalings[] = {"no", "linear", "dynamic NTK", "llama3", "YaRN", "longrope"};
  std::string scaling = absl::StrCat(kScalings[static_cast<int>(rope.scaling)], " scaling");
  if (rope.scaling != engine::RopeScaling::kNone)
    absl::StrAppendFormat(&scaling, " by %g", rope.factor);
  if (!rope.frequency_divisors.empty()) scaling = "frequencies scaled by the file";
  return absl::StrFormat("RoPE, theta %g, %d dimensions, %s", rope.theta, rope.rope_dim, scaling);
}

// Returns the range of of_layer(layer) over all layers, such as "64" or "12 to 20".
template <typename F>
std::string RangeText(const engine::ModelConfig& config, F&& of_layer) {
  const int64_t most = engine::LargestOf(config, of_layer);
  int64_t least = most;
  for (const engine::LayerSpec& layer : config.layers) {
    least = std::min<int64_t>(least, of_layer(layer));
  }
  return least == most ? absl::StrCat(most) : absl::StrCat(least, " to ", most);
}

std::string HeadsText(const engine::ModelConfig& config) {
  using engine::LayerSpec;
  const std::string keys =
      RangeText(config, [](const LayerSpec& layer) { return layer.attention.key_dim; });
  const std::string values =
      RangeText(config, [](const LayerSpec& layer) { return layer.attention.value_dim; });
  return absl::StrCat(
      RangeText(config, [](const LayerSpec& layer) { return layer.attention.num_heads; }),
      " heads of ", keys, values == keys ? "" : absl::StrCat(", values of ", values), ", ",
      RangeText(config, [](const LayerSpec& layer) { return layer.attention.num_kv_heads; }),
      " KV heads");
}

void AddModel(const ModelReport& report, Lines& lines) {
  const engine::ModelConfig& config = report.config;
  lines.Add("layers", absl::StrCat(config.num_layers()));
  lines.Add("hidden size", absl::StrCat(config.hidden_size, ", feed-forward ",
                                        RangeText(config, [](const engine::LayerSpec& layer) {
                                          return layer.feed_forward.inner_size;
                                        })));
  lines.Add("attention", HeadsText(config));
  lines.Add("positions", PositionsText(config));
  const std::vector<kernels::AttentionPattern> patterns = engine::LayerPatterns(config);
  for (const kernels::AttentionPattern& pattern : engine::DifferentPatterns(config)) {
    if (pattern.sees_all()) continue;
    const auto num_layers = std::ranges::count(patterns, pattern);
    if (pattern.has_holes()) {
      lines.Add("sparse attention", absl::StrFormat("%s, on %d layers; saves reading, not memory",
                                                    ToString(pattern), num_layers));
      continue;
    }
    const bool chunks = pattern.rule == kernels::AttentionPattern::Rule::kChunk;
    lines.Add(chunks ? "chunks" : "window",
              absl::StrFormat("%d tokens, on %d layers", pattern.tokens, num_layers));
  }
  lines.Add("vocabulary", absl::StrFormat("%d, %s", config.vocab_size,
                                          config.tie_word_embeddings ? "head tied to the embedding"
                                                                     : "head of its own"));
  if (config.has_images) lines.Add("images", "left out: text alone is served");
  lines.Add("context", absl::StrFormat("%d tokens", config.max_position_embeddings));
  lines.Add("KV cache", absl::StrFormat("%s a token in f16, %s a full context",
                                        Bytes(report.kv_bytes_per_token()),
                                        Bytes(report.kv_bytes_per_context())));
  lines.Add("memory",
            absl::StrFormat("%s: weights and one full context", Bytes(report.memory_bytes())));
}

}  // namespace

TypeUse ModelReport::Total() const {
  TypeUse total;
  for (const auto& [type, use] : types) {
    total.num_tensors += use.num_tensors;
    total.num_bytes += use.num_bytes;
    total.num_parameters += use.num_parameters;
  }
  return total;
}

int64_t ModelReport::kv_bytes_per_token() const {
  return supported.ok() ? engine::KvElementsPerToken(config) * kKvElementBytes : 0;
}

int64_t ModelReport::kv_bytes_per_context() const {
  int64_t elements = 0;
  if (!supported.ok()) return 0;
  for (const engine::LayerSpec& layer : config.layers) {
    const engine::AttentionSpec& attention = layer.attention;
    elements += attention.pattern.MostKept(config.max_position_embeddings) *
                (attention.k_size() + attention.v_size());
  }
  return elements * kKvElementBytes;
}

int64_t ModelReport::memory_bytes() const { return Total().num_bytes + kv_bytes_per_context(); }

ModelReport Inspect(const OpenedModel& model) {
  ModelReport report{
      .path = model.path, .name = ReadName(model), .architecture = ReadArchitecture(model)};
  report.format =
      model.gguf ? absl::StrFormat("GGUF v%d", model.gguf_version) : std::string(model.format());
  auto config = engine::ReadModelConfig(model);
  report.supported = config.status();
  if (config.ok()) report.config = *std::move(config);
  ReadTensors(*model.weights, report);
  if (report.supported.ok() && report.tensors.empty()) {
    report.supported = absl::InvalidArgumentError(
        absl::StrCat(model.path, ": it has no tensors, only a vocabulary"));
  }
  if (report.supported.ok()) report.supported = engine::CheckModel(report.config, model);
  const absl::Status text = ReadText(model, report);
  if (report.supported.ok()) report.supported = text;
  return report;
}

std::string ToText(const ModelReport& report, bool with_tensors) {
  Lines lines;
  lines.Add("format", report.format);
  if (!report.name.empty()) lines.Add("name", Printable(report.name));
  if (!report.architecture.empty()) lines.Add("architecture", Printable(report.architecture));
  const TypeUse total = report.Total();
  lines.Add("parameters",
            absl::StrCat(Grouped(total.num_parameters), " in ", Tensors(total.num_tensors)));
  lines.Add("weights", Bytes(total.num_bytes));
  std::vector<std::pair<std::string, TypeUse>> by_size(report.types.begin(), report.types.end());
  std::ranges::stable_sort(by_size, std::greater<>(),
                           [](const auto& entry) { return entry.second.num_bytes; });
  for (const auto& [type, use] : by_size) {
    lines.Add("  " + type, absl::StrCat(Bytes(use.num_bytes), " in ", Tensors(use.num_tensors)));
  }
  if (report.supported.ok()) AddModel(report, lines);
  if (report.tokenizer.empty()) {
    lines.Add("tokenizer", "none");
  } else if (report.num_tokens < 0) {
    lines.Add("tokenizer", Printable(report.tokenizer));
  } else {
    lines.Add("tokenizer", absl::StrFormat("%s, %d tokens, BOS %s, ends at [%s]",
                                           Printable(report.tokenizer), report.num_tokens,
                                           report.bos_id < 0 ? "none" : absl::StrCat(report.bos_id),
                                           absl::StrJoin(report.end_ids, ", ")));
  }
  if (!report.tokenizer_warning.empty()) lines.Add("", "warning: " + report.tokenizer_warning);
  lines.Add("chat template", report.has_chat_template ? "yes" : "no");
  if (!report.chat_template_error.empty()) {
    lines.Add("", absl::StrCat("warning: it cannot be used, and conversations are refused: ",
                               Printable(report.chat_template_error)));
  }
  lines.Add("supported",
            report.supported.ok() ? "yes" : absl::StrCat("no: ", report.supported.message()));
  if (with_tensors) {
    lines.text() += "\n";
    for (const TensorRow& tensor : report.tensors) {
      absl::StrAppendFormat(&lines.text(), "  %-40s %-5s %-16s %s\n", Printable(tensor.name),
                            tensor.type, files::ShapeToString(tensor.shape),
                            Bytes(tensor.num_bytes));
    }
  }
  return absl::StrCat(report.path, "\n", lines.text());
}

namespace {

nlohmann::ordered_json LayersJson(const engine::ModelConfig& config) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const engine::LayerSpec& layer : config.layers) {
    layers.push_back({{"num_heads", layer.attention.num_heads},
                      {"num_kv_heads", layer.attention.num_kv_heads},
                      {"head_dim", layer.attention.key_dim},
                      {"v_head_dim", layer.attention.value_dim},
                      {"intermediate_size", layer.feed_forward.inner_size}});
  }
  return layers;
}

}  // namespace

nlohmann::ordered_json ToJson(const ModelReport& report, bool with_tensors) {
  const TypeUse total = report.Total();
  nlohmann::ordered_json out = {{"path", report.path},
                                {"format", report.format},
                                {"name", report.name},
                                {"architecture", report.architecture},
                                {"supported", report.supported.ok()}};
  if (!report.supported.ok())
    out["not_supported_because"] = base::ToStd(report.supported.message());
  out["num_parameters"] = total.num_parameters;
  out["num_tensors"] = total.num_tensors;
  out["weight_bytes"] = total.num_bytes;
  out["types"] = nlohmann::ordered_json::object();
  for (const auto& [type, use] : report.types) {
    out["types"][type] = {{"num_tensors", use.num_tensors},
                          {"num_bytes", use.num_bytes},
                          {"num_parameters", use.num_parameters}};
  }
  if (report.supported.ok()) {
    const engine::ModelConfig& config = report.config;
    out["weight_type"] = config.weight_type;
    const engine::AttentionSpec& attention = config.layers[0].attention;
    out["num_layers"] = config.num_layers();
    out["hidden_size"] = config.hidden_size;
    out["intermediate_size"] = config.layers[0].feed_forward.inner_size;
    out["num_heads"] = attention.num_heads;
    out["num_kv_heads"] = attention.num_kv_heads;
    out["head_dim"] = attention.key_dim;
    out["v_head_dim"] = attention.value_dim;
    // The numbers above are those of the first layer.
    if (!engine::HeadsAreAlike(config)) out["layers"] = LayersJson(config);
    out["max_position_embeddings"] = config.max_position_embeddings;
    out["vocab_size"] = config.vocab_size;
    out["tie_word_embeddings"] = config.tie_word_embeddings;
    out["kv_bytes_per_token"] = report.kv_bytes_per_token();
    out["memory_bytes"] = report.memory_bytes();
  }
  if (!report.tokenizer.empty()) {
    out["tokenizer"] = {{"kind", report.tokenizer}};
    if (!report.tokenizer_warning.empty()) out["tokenizer"]["warning"] = report.tokenizer_warning;
    if (report.num_tokens >= 0) {
      out["tokenizer"]["num_tokens"] = report.num_tokens;
      out["tokenizer"]["bos_id"] = report.bos_id;
      out["tokenizer"]["end_ids"] = report.end_ids;
    }
  }
  out["has_chat_template"] = report.has_chat_template;
  if (!report.chat_template_error.empty()) {
    out["chat_template_error"] = report.chat_template_error;
  }
  if (with_tensors) {
    out["tensors"] = nlohmann::ordered_json::array();
    for (const TensorRow& tensor : report.tensors) {
      out["tensors"].push_back({{"name", tensor.name},
                                {"type", tensor.type},
                                {"shape", tensor.shape},
                                {"num_bytes", tensor.num_bytes}});
    }
  }
  return out;
}

}  // namespace quire::tools
