#include "engine/load/engine_choices.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/logging.h"
#include "base/strings.h"

namespace quire::engine {
namespace {

using kernels::DType;

// Returns the one of `dtypes` that `name` stands for, or an error that calls the option `what`.
absl::StatusOr<DType> DtypeOf(const std::string& what, const std::string& name,
                              std::initializer_list<DType> dtypes) {
  std::string want = "auto";
  for (const DType dtype : dtypes) {
    if (name == kernels::Name(dtype)) return dtype;
    absl::StrAppend(&want, "|", base::ToAbsl(kernels::Name(dtype)));
  }
  return absl::InvalidArgumentError(absl::StrFormat("%s: want %s, got \"%s\"", what, want, name));
}

// The default of max_num_batched_tokens. A larger step does not make prefill faster, but makes a
// new request wait longer for the present step to end. A step that also decodes is limited by
// max_step_time too.
constexpr int32_t kCpuMaxNumBatchedTokens = 256;
// A GPU computes a small step no faster than one that fills it. 8192 tokens are vLLM's default for
// an H100.
constexpr int32_t kDeviceMaxNumBatchedTokens = 8192;
// The defaults of max_num_seqs. A GPU reads the weights once for all sequences of a step, so it
// gains from more of them: 256 is also vLLM's default for one GPU.
constexpr int32_t kCpuMaxNumSeqs = 64;
constexpr int32_t kDeviceMaxNumSeqs = 256;
// The default of max_draft_tokens.
constexpr int32_t kCpuMaxDraftTokens = 4;
// The most prompt positions whose logits one step may compute. With a vocabulary of 49,152, 64 rows
// are 12 MiB.
constexpr int64_t kPromptLogprobRows = 64;

}  // namespace

absl::StatusOr<DType> ChooseActivationDtype(const EngineConfig& config, const ModelConfig& model) {
  if (config.dtype == "auto") {
    if (model.weight_type == "F32") return DType::kF32;
    return model.weight_type == "F16" ? DType::kF16 : DType::kBF16;
  }
  if (config.backend == "cpu" && config.dtype != "f32") {
    return absl::InvalidArgumentError(absl::StrFormat(
        "dtype: want auto or f32, in which the CPU computes, got \"%s\"", config.dtype));
  }
  return DtypeOf("dtype", config.dtype, {DType::kF32, DType::kF16, DType::kBF16});
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
  if (name == "fp8") return DType::kF8E4M3;
  return DtypeOf("kv_dtype", name, {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3});
}

absl::StatusOr<StepLimits> ChooseLimits(const EngineConfig& config, const ModelConfig& model,
                                        const kernels::BackendInfo& backend) {
  StepLimits limits{.max_tokens = config.max_num_batched_tokens,
                    .max_seqs = config.max_num_seqs,
                    .max_model_len = config.max_model_len,
                    .block_size = config.block_size};
  limits.pipeline_depth = backend.pipeline_depth;
  if (limits.max_seqs == 0) {
    limits.max_seqs = backend.host_memory ? kCpuMaxNumSeqs : kDeviceMaxNumSeqs;
  }
  if (limits.max_tokens == 0) {
    limits.max_tokens = backend.host_memory ? kCpuMaxNumBatchedTokens : kDeviceMaxNumBatchedTokens;
  }
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

}  // namespace quire::engine
