#include "engine/load/engine_loader.h"

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
#include "base/strings.h"
#include "engine/frontend/tokenizer_loader.h"
#include "engine/kv/kv_budget.h"
#include "engine/kv/prefix_cache.h"
#include "engine/load/engine_choices.h"
#include "engine/model/cache_scales.h"
#include "engine/model/decoder_tensors.h"
#include "engine/model/model_config_reader.h"
#include "engine/model/model_registry.h"
#include "files/model_digest.h"
#include "files/model_files.h"
#include "kernels/backend_registry.h"

namespace quire::engine {
namespace {

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

// Checks that memory can hold the weights as the backend prepares them. Mapped weights need no
// check, because the operating system can drop the pages of a mapped file. Those of e4m3 do,
// because the loader joins them with their scales in memory.
absl::Status CheckWeightsFit(const EngineConfig& config, const files::WeightMap& weights,
                             const kernels::Backend& backend) {
  const bool is_mapped = config.weights == "mapped";
  int64_t needed = 0;
  for (const files::TensorInfo& tensor : weights.tensors()) {
    const int64_t size = files::NumElements(tensor.shape);
    if (size == 0) continue;
    const int64_t cols = tensor.shape.empty() ? 1 : tensor.shape.back();
    const bool is_e4m3 = tensor.type == kernels::WeightType::kF8E4M3;
    if (is_mapped && !is_e4m3) continue;
    const kernels::WeightView view = {is_e4m3 ? kernels::WeightType::kF8E4M3Scaled : tensor.type,
                                      size / cols, cols, tensor.bytes};
    // Quantised experts are together in one tensor, except those of e4m3.
    const bool of_experts =
        tensor.shape.size() > 2 || (is_e4m3 && tensor.name.find(".experts.") != std::string::npos);
    needed += of_experts ? backend.PreparedMoeBytes(view) : backend.PreparedBytes(view);
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

// Warns if a layer's attention has no fast kernel, or returns FailedPrecondition if `strict`.
absl::Status CheckAttentionIsFast(const kernels::Backend& backend, kernels::DType kv_dtype,
                                  const ModelConfig& model, int32_t block_size, bool strict) {
  const auto slow = std::ranges::find_if(model.layers, [&](const LayerSpec& layer) {
    return !backend.HasFastAttention(kv_dtype, layer.attention.plan_key(), block_size);
  });
  if (slow == model.layers.end()) return absl::OkStatus();
  if (strict) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "strict: want a fast attention kernel for every layer, got none for layer %d, with "
        "activations in %s, a KV cache in %s, keys of %d and values of %d elements, block_size %d, "
        "and %s; change --dtype, --kv_dtype or --block_size, or leave out --strict",
        slow - model.layers.begin(), std::string(kernels::Name(backend.activation_dtype())),
        std::string(kernels::Name(kv_dtype)), slow->attention.key_dim, slow->attention.value_dim,
        block_size, slow->attention.alibi_is_rounded ? "a rounded bias" : "no rounded bias"));
  }
  base::Log(
      base::LogLevel::kWarning, "engine",
      "attention runs on a plain kernel, many times slower: the fast ones want activations "
      "and KV cache of one dtype, f16 or bf16, and keys and values of a usual head_dim; with "
      "block-sparse layers, of 128; an fp8 cache, of 64, 128 or 256; none has Falcon's ALiBi, "
      "whose bias is rounded",
      {{"activations", kernels::Name(backend.activation_dtype())},
       {"kv_dtype", kernels::Name(kv_dtype)},
       {"layer", slow - model.layers.begin()},
       {"key_dim", slow->attention.key_dim},
       {"value_dim", slow->attention.value_dim},
       {"alibi_is_rounded", slow->attention.alibi_is_rounded},
       {"block_size", block_size}});
  return absl::OkStatus();
}

// Logs how many matrices the experiment fp8_products concerns. Warns if there are none, or fewer
// than there might be.
void LogFp8Products(const kernels::BackendInfo& backend) {
  if (backend.num_refused_e4m3 > 0) {
    base::Log(base::LogLevel::kWarning, "engine",
              "fp8_products: cuBLASLt refuses products of some matrices in F8_E4M3 on this "
              "GPU; they are multiplied with activations in 16 bits",
              {{"refused", backend.num_refused_e4m3},
               {"matrices", backend.num_e4m3_products},
               {"others", backend.num_other_e4m3}});
    return;
  }
  const bool has_any = backend.num_e4m3_products > 0;
  base::Log(has_any ? base::LogLevel::kInfo : base::LogLevel::kWarning, "engine",
            has_any ? "matrices in F8_E4M3 are multiplied with activations in F8_E4M3"
                    : "fp8_products does nothing: it wants a GPU, and matrices in F8_E4M3 "
                      "outside of mixtures, in whole blocks of 16 rows or of 128 x 128 weights",
            {{"matrices", backend.num_e4m3_products}, {"others", backend.num_other_e4m3}});
}

// Returns the bytes of the KV cache if the config does not say. On a device, the cache gets what
// weights and steps leave of gpu_memory_utilization of the memory. The rest is for what the first
// steps allocate: plans, recordings, and the libraries' own. On a host, whose memory others need
// too, the cache gets at most a quarter of what is available.
int64_t DefaultCacheBytes(const EngineConfig& config, const kernels::BackendInfo& backend,
                          int64_t available) {
  if (available <= 0) return std::numeric_limits<int64_t>::max();
  if (backend.host_memory) return available / 4;
  const auto kept_free = static_cast<int64_t>((1.0 - config.gpu_memory_utilization) *
                                              static_cast<double>(backend.memory_bytes));
  return std::max<int64_t>(0, available - kept_free);
}

// Creates a KV cache of kv_cache_mib MiB. If that is 0, creates one of DefaultCacheBytes. On a host
// it is for at most max_num_seqs whole contexts.
absl::StatusOr<KvCache> CreateCache(const EngineConfig& config, const StepLimits& limits,
                                    const ModelConfig& model, kernels::DType dtype,
                                    kernels::Backend& backend, int64_t available) {
  RETURN_IF_ERROR(CheckAttentionIsFast(backend, dtype, model, config.block_size, config.strict));
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
    const kernels::BackendInfo info = backend.info();
    budget.bytes = DefaultCacheBytes(config, info, available);
    budget.use_all = !info.host_memory;
  }
  RETURN_IF_ERROR(DivideKvMemory(shape, budget, groups));
  WarnOfAShortCache(limits, groups[0]);
  return KvCache::Create(backend, std::move(shape), std::move(groups));
}

// Reads the scales of an fp8 cache. Logs what became of those in the model.
absl::Status LoadCacheScales(const files::OpenedModel& files, kernels::DType kv_dtype,
                             ModelConfig& model) {
  if (kv_dtype != kernels::DType::kF8E4M3) {
    if (std::ranges::any_of(files.weights->tensors(), IsCacheScale, &files::TensorInfo::name)) {
      base::Log(base::LogLevel::kInfo, "engine",
                "the model's scales of an fp8 KV cache are left out: --kv_dtype fp8 uses them",
                {{"model", files.path}});
    }
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(ReadCacheScales(files, model));
  const auto num_scaled = std::ranges::count_if(model.layers, [](const LayerSpec& layer) {
    return layer.attention.cache_scales != kernels::CacheScales();
  });
  base::Log(base::LogLevel::kInfo, "engine",
            num_scaled > 0 ? "the fp8 KV cache has the scales of the model"
                           : "the model has no scales of its fp8 KV cache: they are 1",
            {{"layers_with_scales", num_scaled}, {"layers", model.num_layers()}});
  return absl::OkStatus();
}

std::string ServedName(const EngineConfig& config, const files::OpenedModel& files) {
  if (!config.served_model_name.empty()) return config.served_model_name;
  const std::string& name = files.file_name;
  const size_t dot = name.rfind('.');
  return dot == std::string::npos || files.hf ? name : name.substr(0, dot);
}

// Returns the experiments that are asked for and can change anything of the model. Logs those that
// cannot.
absl::StatusOr<kernels::CudaExperiments> ExperimentsOn(const EngineConfig& config,
                                                       const ModelConfig& model) {
  ASSIGN_OR_RETURN(kernels::CudaExperiments asked,
                   kernels::ReadCudaExperiments(config.cuda_experiments));
  const bool has_alibi = model.alibi_bias_max && !model.layers[0].attention.alibi_is_rounded;
  if (asked.alibi_skip && !has_alibi) {
    base::Log(base::LogLevel::kInfo, "engine",
              "alibi_skip changes nothing: no tensor core kernel of this model has ALiBi",
              {{"architecture", model.architecture}});
    asked.alibi_skip = false;
  }
  return asked;
}

// Returns a name of all that the bits of an answer depend on, besides the model.
std::string AnswerNumerics(const EngineParts& parts, const ModelConfig& model,
                           const kernels::BackendInfo& backend) {
  std::string name = absl::StrCat(backend.numerics, ",kv=", parts.model_info.kv_dtype);
  const bool depends_on_length = std::ranges::any_of(model.ropes, [](const RopeConfig& rope) {
    return rope.scaling == RopeScaling::kDynamic || rope.scaling == RopeScaling::kLongRope;
  });
  if (depends_on_length) absl::StrAppend(&name, ",rope_len=", parts.limits.max_model_len);
  if (!backend.host_memory) {
    absl::StrAppend(&name, ",act=", parts.model_info.activation_dtype, ",gpu=", backend.isa_path);
  }
  return name;
}

// Reads the chat template. A model whose own cannot be used is served without it, since no other
// request needs one. A template that the operator names is refused instead.
absl::Status LoadChat(const EngineConfig& config, const files::OpenedModel& files,
                      EngineParts& parts) {
  auto chat_template = LoadChatTemplate(files, *parts.tokenizer);
  if (chat_template.ok()) {
    parts.chat_template = *std::move(chat_template);
    return absl::OkStatus();
  }
  const std::string reason(chat_template.status().message());
  if (!config.chat_template.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("chat_template: ", config.chat_template, ": ", reason));
  }
  parts.no_chat = absl::StrCat("this model's chat template cannot be used: ", reason);
  base::Log(base::LogLevel::kWarning, "engine",
            "the chat template cannot be used, and conversations are refused: --chat_template "
            "replaces it",
            {{"model", files.path}, {"reason", reason}});
  return absl::OkStatus();
}

absl::Status LoadText(const EngineConfig& config, const files::OpenedModel& files,
                      EngineParts& parts) {
  ASSIGN_OR_RETURN(parts.tokenizer, LoadTokenizer(files));
  if (const std::string warning = TokenizerWarning(files); !warning.empty()) {
    base::Log(base::LogLevel::kWarning, "engine", warning, {{"model", files.path}});
  }
  return LoadChat(config, files, parts);
}

// Creates the model and the sampler. What they allocate is known before the cache is sized.
absl::Status AllocateForSteps(const ModelConfig& config, const files::OpenedModel& files,
                              EngineParts& parts) {
  const auto allocate = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(parts.model, CreateModel(config, files, *parts.backend, parts.limits));
    ASSIGN_OR_RETURN(parts.sampler, PrepareSampler(*parts.tokenizer, config.vocab_size,
                                                   parts.limits, *parts.backend));
    return absl::OkStatus();
  };
  return WithMemoryCure(
      allocate(),
      ": weights and steps need it; lower --max_num_batched_tokens or --max_num_seqs, or take a "
      "smaller type of weights (quire-convert --type q4_k)");
}

}  // namespace

absl::StatusOr<EngineParts> LoadEngineParts(const EngineConfig& config) {
  if (config.weights != "packed" && config.weights != "mapped") {
    return absl::InvalidArgumentError(
        absl::StrFormat("weights: want packed or mapped, got \"%s\"", config.weights));
  }
  if (config.kv_disk_mib > 0 && config.kv_disk_dir.empty()) {
    return absl::InvalidArgumentError(
        "kv_disk_mib: want a directory for the K and V as well: name it with --kv_disk_dir, or "
        "leave kv_disk_mib out");
  }
  EngineParts parts;
  if (!config.kv_disk_dir.empty()) {
    ASSIGN_OR_RETURN(parts.directory, files::StateDirectory::Open(config.kv_disk_dir));
  }
  ASSIGN_OR_RETURN(files::OpenedModel opened, files::OpenModelFiles(config.model_path));
  if (!config.chat_template.empty()) {
    RETURN_IF_ERROR(opened.ReplaceChatTemplate(config.chat_template));
  }
  const auto files = std::make_shared<files::OpenedModel>(std::move(opened));
  parts.files = files;
  ASSIGN_OR_RETURN(ModelConfig model, ReadModelConfig(*files));
  if (model.has_images) {
    base::Log(base::LogLevel::kInfo, "engine",
              "the part of the model that reads images is left out", {{"model", files->path}});
  }
  RETURN_IF_ERROR(LoadText(config, *files, parts));

  ASSIGN_OR_RETURN(const kernels::DType dtype, ChooseActivationDtype(config, model));
  ASSIGN_OR_RETURN(const kernels::CudaExperiments experiments, ExperimentsOn(config, model));
  ASSIGN_OR_RETURN(parts.backend,
                   kernels::CreateBackend({.name = config.backend,
                                           .cpu_isa = config.cpu_isa,
                                           .cuda = experiments,
                                           .deterministic = config.deterministic,
                                           .num_threads = config.threads,
                                           .pack_weights = config.weights == "packed",
                                           .activation_dtype = dtype}));
  if (config.dtype != "auto" && config.dtype != kernels::Name(parts.backend->activation_dtype())) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "dtype: want auto or %s, in which this backend computes, got \"%s\"",
        std::string(kernels::Name(parts.backend->activation_dtype())), config.dtype));
  }
  ASSIGN_OR_RETURN(const kernels::DType kv_dtype,
                   ChooseKvDtype(config.kv_dtype, model, *parts.backend));
  RETURN_IF_ERROR(LoadCacheScales(*files, kv_dtype, model));
  ASSIGN_OR_RETURN(parts.limits, ChooseLimits(config, model, parts.backend->info()));
  parts.limits.warms_up_every_size = true;
  ASSIGN_OR_RETURN(parts.limits.max_draft_tokens,
                   ChooseMaxDraftTokens(config.max_draft_tokens, parts.limits.pipeline_depth));
  RETURN_IF_ERROR(CheckWeightsFit(config, *files->weights, *parts.backend));
  RETURN_IF_ERROR(AllocateForSteps(model, *files, parts));
  if (experiments.fp8_products) LogFp8Products(parts.backend->info());

  ASSIGN_OR_RETURN(const int64_t available,
                   CheckStepsFit(parts.limits, *parts.model, *parts.backend));
  ASSIGN_OR_RETURN(parts.cache,
                   CreateCache(config, parts.limits, model, kv_dtype, *parts.backend, available));

  const kernels::BackendInfo backend = parts.backend->info();
  const AttentionSpec& heads = model.layers[0].attention;
  parts.model_info = {
      .name = ServedName(config, *files),
      .architecture = model.architecture,
      .weight_type = model.weight_type,
      .activation_dtype = std::string(kernels::Name(parts.backend->activation_dtype())),
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
                       .pci_bus_id = backend.pci_bus_id,
                       .block_size = config.block_size,
                       .num_blocks = parts.cache.groups()[0].num_blocks,
                       .kv_cache_bytes = parts.cache.bytes(),
                       .max_num_seqs = static_cast<int32_t>(parts.limits.max_seqs),
                       .max_num_batched_tokens = static_cast<int32_t>(parts.limits.max_tokens),
                       .max_draft_tokens = parts.limits.max_draft_tokens,
                       .hash_scheme = std::string(kHashScheme),
                       .model_digest = files::ModelDigest(*files),
                       .answer_numerics = AnswerNumerics(parts, model, backend),
                       .no_resume = backend.host_memory || config.deterministic
                                        ? ""
                                        : "--deterministic is not set: without it the bits of an "
                                          "answer depend on what else a GPU computes"};
  return parts;
}

absl::Status WithMemoryCure(const absl::Status& status, std::string_view cure) {
  if (!absl::IsResourceExhausted(status)) return status;
  return absl::ResourceExhaustedError(absl::StrCat(status.message(), base::ToAbsl(cure)));
}

absl::StatusOr<std::unique_ptr<kernels::PreparedSampler>> PrepareSampler(
    const text::Tokenizer& tokenizer, int64_t vocab_size, const StepLimits& limits,
    kernels::Backend& backend) {
  const auto num_ids = static_cast<int32_t>(vocab_size);
  return backend.PrepareSampler({.vocab_size = num_ids,
                                 .end_ids = tokenizer.end_ids(),
                                 .without_piece = tokenizer.IdsWithoutPiece(num_ids),
                                 .max_rows = limits.max_logit_rows,
                                 .max_draws = limits.max_logit_rows});
}

}  // namespace quire::engine
