#include "engine/engine_loader.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "base/logging.h"
#include "base/status_macros.h"
#include "engine/frontend/tokenizer_loader.h"
#include "engine/kv/kv_budget.h"
#include "engine/kv/prefix_cache.h"
#include "engine/model/model_config_reader.h"
#include "engine/model/model_registry.h"
#include "files/model_files.h"
#include "kernels/backend_registry.h"

namespace quire::engine {
namespace {

// The default of max_num_batched_tokens. A larger step does not make prefill faster, but makes a
// new request wait longer for the present step to end. A step that also decodes is limited by
// max_step_time too.
constexpr int32_t kCpuMaxNumBatchedTokens = 256;
// The default of max_draft_tokens.
constexpr int32_t kCpuMaxDraftTokens = 4;
// The most prompt positions whose logits one step may compute. With a vocabulary of 49,152, 64 rows
// are 12 MiB.
constexpr int64_t kPromptLogprobRows = 64;

// Returns the dtype of activations for a backend that has a choice. Models whose weights are
// neither F32 nor F16 get bf16, because values beyond the range of f16 have been seen in such
// models.
kernels::DType ActivationDtype(const ModelConfig& config) {
  if (config.weight_type == "F32") return kernels::DType::kF32;
  return config.weight_type == "F16" ? kernels::DType::kF16 : kernels::DType::kBF16;
}

absl::StatusOr<kernels::DType> ChooseKvDtype(const std::string& name, const ModelConfig& config,
                                             const kernels::Backend& backend) {
  if (name == "auto") {
    // Attention is fast if queries and cache have the same 16-bit dtype, so the cache takes the
    // dtype of 16-bit activations.
    const kernels::DType dtype = backend.activation_dtype();
    if (dtype != kernels::DType::kF32) return dtype;
    // Models with F32 weights are served to compare with references, so their cache is f32. All
    // other models get an f16 cache, which takes half the memory.
    return config.weight_type == "F32" ? kernels::DType::kF32 : kernels::DType::kF16;
  }
  for (const kernels::DType dtype :
       {kernels::DType::kF32, kernels::DType::kF16, kernels::DType::kBF16}) {
    if (name == kernels::Name(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("kv_dtype: want auto, f32, f16 or bf16, got \"%s\"", name));
}

absl::StatusOr<StepLimits> ChooseLimits(const EngineConfig& config, const ModelConfig& model) {
  StepLimits limits{.max_tokens = config.max_num_batched_tokens,
                    .max_seqs = config.max_num_seqs,
                    .max_model_len = config.max_model_len,
                    .block_size = config.block_size};
  if (limits.max_tokens == 0) limits.max_tokens = kCpuMaxNumBatchedTokens;
  limits.max_tokens = std::max(limits.max_tokens, limits.max_seqs);
  limits.max_logit_rows = limits.max_seqs + kPromptLogprobRows;
  if (limits.max_model_len == 0) limits.max_model_len = model.max_position_embeddings;
  if (limits.max_model_len > model.max_position_embeddings) {
    if (!ServesBeyondItsContext(model)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "max_model_len: want at most %d, the context that the model was trained for, got %d",
          model.max_position_embeddings, limits.max_model_len));
    }
    base::Log(base::LogLevel::kInfo, "engine", "contexts may outgrow the one trained for",
              {{"max_model_len", limits.max_model_len},
               {"trained_for", model.max_position_embeddings},
               {"positions", model.alibi_bias_max ? "ALiBi" : "scaled RoPE"}});
  }
  if (limits.block_size % 16 != 0 || limits.block_size < 16 || limits.block_size > 256) {
    return absl::InvalidArgumentError(
        absl::StrFormat("block_size: want a multiple of 16 in 16..256, got %d", limits.block_size));
  }
  return limits;
}

absl::StatusOr<int32_t> ChooseMaxDraftTokens(int32_t max_draft_tokens, int32_t pipeline_depth) {
  if (max_draft_tokens < -1 || max_draft_tokens > kMostDraftTokens) {
    return absl::InvalidArgumentError(absl::StrFormat("max_draft_tokens: want -1..%d, got %d",
                                                      kMostDraftTokens, max_draft_tokens));
  }
  if (pipeline_depth == 0) return max_draft_tokens == -1 ? kCpuMaxDraftTokens : max_draft_tokens;
  if (max_draft_tokens > 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "max_draft_tokens: want 0 on a backend that builds a step before it has the tokens of the "
        "step before, got %d",
        max_draft_tokens));
  }
  return 0;
}

int64_t MiB(int64_t bytes) { return bytes >> 20; }

// Returns ResourceExhausted if `needed` is more than `available`, unless `available` is 0
// (unknown). Without this check, the memory limit of a container would kill the process without a
// message.
absl::Status CheckFits(std::string_view who_needs, int64_t needed, int64_t available,
                       std::string_view cure) {
  if (available <= 0 || needed <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("%s %d MiB, and this machine or its container's memory limit has %d MiB "
                      "left; raise the limit, or %s",
                      who_needs, MiB(needed), MiB(available), cure));
}

// Checks that memory can hold packed weights. Mapped weights need no check, because the operating
// system can drop the pages of a mapped file.
absl::Status CheckWeightsFit(const EngineConfig& config, const files::WeightMap& weights,
                             const kernels::Backend& backend) {
  if (config.weights == "mapped") return absl::OkStatus();
  int64_t needed = 0;
  for (const files::TensorInfo& tensor : weights.tensors()) {
    needed += static_cast<int64_t>(tensor.bytes.size());
  }
  return CheckFits(absl::StrCat(config.model_path, ": the weights need"), needed,
                   backend.available_bytes(),
                   "take a smaller type of weights (quire-convert --type q4_k)");
}

// Returns the bytes left for the cache, or 0 when unknown. Host memory counts as available until it
// is first touched. No step has touched its buffers yet, so their size is subtracted here. Device
// memory is taken when it is allocated, so nothing is subtracted.
absl::StatusOr<int64_t> CheckStepsFit(const StepLimits& limits, const Model& model,
                                      const kernels::Backend& backend) {
  const int64_t available = backend.available_bytes();
  if (available <= 0 || !backend.info().host_memory) return available;
  RETURN_IF_ERROR(CheckFits(absl::StrFormat("steps of %d tokens and %d rows of logits need",
                                            limits.max_tokens, limits.max_logit_rows),
                            model.step_bytes(), available,
                            "lower --max_num_batched_tokens or --max_num_seqs"));
  return std::max<int64_t>(1, available - model.step_bytes());
}

void WarnOfAShortCache(const StepLimits& limits, const KvGroup& group) {
  const int64_t tokens = group.num_blocks * limits.block_size;
  if (tokens >= limits.max_model_len) return;
  base::Log(base::LogLevel::kWarning, "engine",
            "the KV cache holds less than one context, longer requests are refused: raise "
            "--kv_cache_mib, or lower --max_model_len",
            {{"cache_tokens", tokens}, {"max_model_len", limits.max_model_len}});
}

void WarnOfSlowAttention(const kernels::Backend& backend, kernels::DType kv_dtype,
                         const ModelConfig& model, int32_t block_size) {
  const auto slow = std::ranges::find_if(model.layers, [&](const LayerSpec& layer) {
    return !backend.HasFastAttention(kv_dtype, layer.attention.plan_key(), block_size);
  });
  if (slow == model.layers.end()) return;
  base::Log(base::LogLevel::kWarning, "engine",
            "attention runs on a plain kernel, many times slower: the fast ones want activations "
            "and KV cache of one dtype, f16 or bf16, and keys and values of a usual head_dim; with "
            "block-sparse layers, of 128",
            {{"activations", kernels::Name(backend.activation_dtype())},
             {"kv_dtype", kernels::Name(kv_dtype)},
             {"layer", slow - model.layers.begin()},
             {"key_dim", slow->attention.key_dim},
             {"value_dim", slow->attention.value_dim},
             {"block_size", block_size}});
}

// Creates a KV cache of kv_cache_mib MiB. If that is 0, creates a cache for max_num_seqs whole
// contexts, but uses at most a quarter of the available memory.
absl::StatusOr<KvCache> CreateCache(const EngineConfig& config, const StepLimits& limits,
                                    const ModelConfig& model, kernels::Backend& backend,
                                    int64_t available) {
  ASSIGN_OR_RETURN(const kernels::DType dtype, ChooseKvDtype(config.kv_dtype, model, backend));
  WarnOfSlowAttention(backend, dtype, model, config.block_size);
  KvCacheShape shape{
      .layers = KvLayerShapes(model), .block_size = config.block_size, .dtype = dtype};
  std::vector<KvGroup> groups = GroupLayers(LayerPatterns(model), limits.max_model_len);

  KvBudget budget{.bytes = config.kv_cache_mib << 20,
                  .use_all = config.kv_cache_mib > 0,
                  .max_seqs = limits.max_seqs,
                  .max_model_len = limits.max_model_len,
                  .max_step_tokens = limits.max_tokens,
                  .pipeline_depth = limits.pipeline_depth};
  if (available > 0 && budget.bytes > available) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "kv_cache_mib: want at most %d, the MiB that this machine or its container's memory limit "
        "has left beside weights and steps, got %d; lower it, or raise the limit",
        MiB(available), config.kv_cache_mib));
  }
  if (!budget.use_all) {
    budget.bytes = available > 0 ? available / 4 : std::numeric_limits<int64_t>::max();
  }
  RETURN_IF_ERROR(DivideKvMemory(shape, budget, groups));
  WarnOfAShortCache(limits, groups[0]);
  return KvCache::Create(backend, std::move(shape), std::move(groups));
}

std::string ServedName(const EngineConfig& config, const files::OpenedModel& files) {
  if (!config.served_model_name.empty()) return config.served_model_name;
  const std::string& name = files.file_name;
  const size_t dot = name.rfind('.');
  return dot == std::string::npos || files.hf ? name : name.substr(0, dot);
}

absl::Status LoadText(const files::OpenedModel& files, EngineParts& parts) {
  ASSIGN_OR_RETURN(parts.tokenizer, LoadTokenizer(files));
  if (const std::string warning = TokenizerWarning(files); !warning.empty()) {
    base::Log(base::LogLevel::kWarning, "engine", warning, {{"model", files.path}});
  }
  ASSIGN_OR_RETURN(parts.chat_template, LoadChatTemplate(files, *parts.tokenizer));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EngineParts> LoadEngineParts(const EngineConfig& config) {
  if (config.weights != "packed" && config.weights != "mapped") {
    return absl::InvalidArgumentError(
        absl::StrFormat("weights: want packed or mapped, got \"%s\"", config.weights));
  }
  EngineParts parts;
  ASSIGN_OR_RETURN(files::OpenedModel opened, files::OpenModelFiles(config.model_path));
  const auto files = std::make_shared<files::OpenedModel>(std::move(opened));
  parts.files = files;
  ASSIGN_OR_RETURN(const ModelConfig model, ReadModelConfig(*files));
  if (model.has_images) {
    base::Log(base::LogLevel::kInfo, "engine",
              "the part of the model that reads images is left out", {{"model", files->path}});
  }
  RETURN_IF_ERROR(LoadText(*files, parts));

  ASSIGN_OR_RETURN(parts.backend,
                   kernels::CreateBackend({.name = config.backend,
                                           .cpu_isa = config.cpu_isa,
                                           .num_threads = config.threads,
                                           .pack_weights = config.weights == "packed",
                                           .activation_dtype = ActivationDtype(model)}));
  ASSIGN_OR_RETURN(parts.limits, ChooseLimits(config, model));
  parts.limits.pipeline_depth = parts.backend->info().pipeline_depth;
  ASSIGN_OR_RETURN(parts.limits.max_draft_tokens,
                   ChooseMaxDraftTokens(config.max_draft_tokens, parts.limits.pipeline_depth));
  RETURN_IF_ERROR(CheckWeightsFit(config, *files->weights, *parts.backend));
  ASSIGN_OR_RETURN(parts.model, CreateModel(model, *files, *parts.backend, parts.limits));

  ASSIGN_OR_RETURN(const int64_t available,
                   CheckStepsFit(parts.limits, *parts.model, *parts.backend));
  ASSIGN_OR_RETURN(parts.cache,
                   CreateCache(config, parts.limits, model, *parts.backend, available));

  const kernels::BackendInfo backend = parts.backend->info();
  const AttentionSpec& heads = model.layers[0].attention;
  parts.model_info = {.name = ServedName(config, *files),
                      .architecture = model.architecture,
                      .weight_type = model.weight_type,
                      .kv_dtype = std::string(kernels::Name(parts.cache.shape().dtype)),
                      .num_parameters = parts.model->num_parameters(),
                      .weight_bytes = parts.model->weight_bytes(),
                      .vocab_size = model.vocab_size,
                      .hidden_size = model.hidden_size,
                      .num_layers = model.num_layers(),
                      .num_heads = heads.num_heads,
                      .num_kv_heads = heads.num_kv_heads,
                      .head_dim = heads.key_dim,
                      .max_model_len = parts.limits.max_model_len,
                      .max_position_embeddings = model.max_position_embeddings,
                      .kv_bytes_per_token = parts.cache.bytes_per_token(),
                      .has_chat_template = parts.chat_template != nullptr,
                      .bos_id = parts.tokenizer->bos_id(),
                      .end_ids = parts.tokenizer->end_ids()};
  parts.server_info = {.version = QUIRE_VERSION,
                       .backend = backend.name,
                       .isa_path = backend.isa_path,
                       .numerics = backend.numerics,
                       .num_threads = backend.num_threads,
                       .block_size = config.block_size,
                       .num_blocks = parts.cache.groups()[0].num_blocks,
                       .kv_cache_bytes = parts.cache.bytes(),
                       .max_num_seqs = static_cast<int32_t>(parts.limits.max_seqs),
                       .max_num_batched_tokens = static_cast<int32_t>(parts.limits.max_tokens),
                       .max_draft_tokens = parts.limits.max_draft_tokens,
                       .hash_scheme = std::string(kHashScheme)};
  return parts;
}

}  // namespace quire::engine
