#include "kernels/ops/paged_attention.h"

#include <cmath>

#include "base/status_macros.h"
#include "kernels/ops/check.h"

namespace quire::kernels {
namespace {

// The upper limit of a pattern's block length, local_blocks and stride. Up to it, the products and
// sums of AttentionPattern::SeesBlock fit in 32 bits.
constexpr int64_t kMostOfBlocks = 1 << 16;

absl::Status ValidateBlocks(const AttentionPattern& pattern) {
  if (pattern.tokens <= 0 || pattern.tokens % AttentionPattern::kTileKeys != 0 ||
      pattern.tokens > kMostOfBlocks) {
    return WantGot("pattern",
                   absl::StrCat("blocks of a multiple of ", AttentionPattern::kTileKeys,
                                " tokens, at most ", kMostOfBlocks),
                   absl::StrCat(pattern.tokens));
  }
  if (pattern.local_blocks < 1 || pattern.local_blocks > kMostOfBlocks) {
    return WantGot("pattern", absl::StrCat("local_blocks in [1, ", kMostOfBlocks, "]"),
                   absl::StrCat(pattern.local_blocks));
  }
  if (pattern.stride < 1 || pattern.stride > kMostOfBlocks || pattern.head_step < 0 ||
      pattern.head_step > pattern.stride) {
    return WantGot(
        "pattern",
        absl::StrCat("a stride in [1, ", kMostOfBlocks, "] and a head_step in [0, stride]"),
        absl::StrCat(pattern.stride, " and ", pattern.head_step));
  }
  return absl::OkStatus();
}

absl::Status Validate(const AttentionPattern& pattern) {
  if (pattern.has_holes()) return ValidateBlocks(pattern);
  if (pattern.sees_all() ? pattern.tokens == 0 : pattern.tokens > 0) return absl::OkStatus();
  return WantGot("pattern", pattern.sees_all() ? "no tokens where all keys are seen" : "tokens > 0",
                 absl::StrCat(pattern.tokens));
}

absl::Status CheckDim(std::string_view what, std::string_view name, int64_t dim) {
  if (dim > 0 && dim % 8 == 0 && dim <= 256) return absl::OkStatus();
  return WantGot(what, absl::StrCat(base::ToAbsl(name), " a multiple of 8, at most 256"),
                 absl::StrCat(dim));
}

absl::Status ValidateSharedKeys(const AttentionPlanArgs& args) {
  if (args.shared_seqs.empty() && args.shared_keys.empty()) return absl::OkStatus();
  std::vector<bool> is_shared(args.context_lens.size());
  for (const int32_t seq : args.shared_seqs) {
    if (seq < 0 || seq >= std::ssize(args.context_lens) || is_shared[static_cast<size_t>(seq)]) {
      return WantGot("plan", "sequences of the step in shared_seqs, each once", absl::StrCat(seq));
    }
    is_shared[static_cast<size_t>(seq)] = true;
  }
  for (const SharedKeys& keys : args.shared_keys) {
    if (keys.first < 0 || keys.count < 2 ||
        int64_t{keys.first} + keys.count > std::ssize(args.shared_seqs)) {
      return WantGot("plan", "shared keys of two sequences or more of shared_seqs",
                     absl::StrCat(keys.count, " from ", keys.first));
    }
    for (const int32_t seq : args.shared_seqs.subspan(keys.first, keys.count)) {
      const auto at = static_cast<size_t>(seq);
      const int32_t first_position = args.context_lens[at] - args.query_lens[at];
      if (keys.num_keys <= 0 || keys.num_keys % AttentionPattern::kTileKeys != 0 ||
          keys.num_keys > first_position) {
        return WantGot("plan",
                       absl::StrCat("shared keys, a multiple of ", AttentionPattern::kTileKeys,
                                    ", before position ", first_position),
                       absl::StrCat(keys.num_keys));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string ToString(const AttentionPattern& pattern) {
  switch (pattern.rule) {
    case AttentionPattern::Rule::kAll:
      return "all keys";
    case AttentionPattern::Rule::kWindow:
      return absl::StrCat("a window of ", pattern.tokens);
    case AttentionPattern::Rule::kChunk:
      return absl::StrCat("chunks of ", pattern.tokens);
    case AttentionPattern::Rule::kBlocks:
      return absl::StrCat("blocks of ", pattern.tokens, ": the last ", pattern.local_blocks,
                          ", and one of every ", pattern.stride,
                          pattern.head_step == 0 ? "" : ", by head");
  }
  return "an unknown rule";
}

absl::Status Validate(const AttentionPlanArgs& args) {
  const AttentionHeads& heads = args.heads;
  if (heads.num_kv_heads <= 0 || heads.num_heads <= 0 ||
      heads.num_heads % heads.num_kv_heads != 0) {
    return WantGot("plan", "num_heads a positive multiple of num_kv_heads",
                   absl::StrCat(heads.num_heads, " and ", heads.num_kv_heads));
  }
  if (heads.key_dim <= 0) return WantGot("plan", "key_dim > 0", absl::StrCat(heads.key_dim));
  if (heads.value_dim <= 0) return WantGot("plan", "value_dim > 0", absl::StrCat(heads.value_dim));
  RETURN_IF_ERROR(Validate(args.pattern));
  if (args.context_lens.size() != args.query_lens.size()) {
    return WantGot("plan", absl::StrCat(args.context_lens.size(), " query_lens"),
                   absl::StrCat(args.query_lens.size()));
  }
  for (size_t seq = 0; seq < args.query_lens.size(); ++seq) {
    if (args.query_lens[seq] < 0 || args.query_lens[seq] > args.context_lens[seq]) {
      return WantGot("plan", absl::StrCat("a query_len in [0, ", args.context_lens[seq], "]"),
                     absl::StrCat(args.query_lens[seq]));
    }
  }
  return ValidateSharedKeys(args);
}

absl::Status Validate(const PagedAttentionArgs& args) {
  RETURN_IF_ERROR(CheckActivations("query", args.query, {kAnyDim, kAnyDim, kAnyDim}));
  const int64_t num_heads = args.query.dim(1);
  const int64_t key_dim = args.query.dim(2);
  RETURN_IF_ERROR(CheckDim("query", "key_dim", key_dim));
  RETURN_IF_ERROR(CheckKvCache(args.kv_cache, key_dim, kAnyDim));
  const int64_t value_dim = args.kv_cache.value_dim();
  RETURN_IF_ERROR(CheckDim("kv_cache", "value_dim", value_dim));
  RETURN_IF_ERROR(CheckActivations("out", args.out, {args.query.dim(0), num_heads, value_dim}));
  RETURN_IF_ERROR(CheckSameDType("out", args.out, args.query));
  const int64_t num_kv_heads = args.kv_cache.num_kv_heads();
  if (num_kv_heads <= 0 || num_heads % num_kv_heads != 0) {
    return WantGot("query", absl::StrCat("num_heads a multiple of num_kv_heads = ", num_kv_heads),
                   absl::StrCat(num_heads));
  }
  RETURN_IF_ERROR(CheckTensor("block_table", args.block_table, {DType::kI32}, {kAnyDim, kAnyDim}));
  const int64_t num_seqs = args.block_table.dim(0);
  RETURN_IF_ERROR(CheckTensor("context_lens", args.context_lens, {DType::kI32}, {num_seqs}));
  RETURN_IF_ERROR(CheckTensor("query_starts", args.query_starts, {DType::kI32}, {num_seqs + 1}));
  if (!args.alibi_slopes.empty()) {
    RETURN_IF_ERROR(CheckTensor("alibi_slopes", args.alibi_slopes, {DType::kF32}, {num_heads}));
  } else if (args.alibi_is_rounded) {
    return WantGot("alibi_is_rounded", "false without alibi_slopes", "true");
  }
  if (!args.sinks.empty()) {
    RETURN_IF_ERROR(CheckTensor("sinks", args.sinks, {DType::kF32}, {num_heads}));
  }
  if (!std::isfinite(args.scale)) return WantGot("scale", "finite", absl::StrCat(args.scale));
  if (!std::isfinite(args.soft_cap) || args.soft_cap < 0.0f) {
    return WantGot("soft_cap", "finite and >= 0", absl::StrCat(args.soft_cap));
  }
  RETURN_IF_ERROR(Validate(args.pattern));
  if (args.plan == nullptr) return WantGot("plan", "one from Backend::Plan", "none");
  return absl::OkStatus();
}

void AttentionPlan::SetStep(const AttentionPlanArgs& args) {
  query_lens_.assign(args.query_lens.begin(), args.query_lens.end());
  context_lens_.assign(args.context_lens.begin(), args.context_lens.end());
  num_tokens_ = 0;
  for (const int32_t query_len : query_lens_) num_tokens_ += query_len;
  key_ = args.key();
}

absl::Status AttentionPlan::CheckMatches(const PagedAttentionArgs& args) const {
  if (key_ != args.key() || num_seqs() != args.block_table.dim(0) ||
      num_tokens_ != args.query.dim(0)) {
    return WantGot("plan",
                   absl::StrCat("one for ", args.block_table.dim(0), " sequences, query ",
                                args.query.ToString(), ", kv_cache ", args.kv_cache.ToString(),
                                ", ", ToString(args.pattern)),
                   absl::StrCat(num_seqs(), " sequences of ", num_tokens_, " tokens, heads ",
                                num_heads(), "/", num_kv_heads(), " of ", key_.heads.key_dim, "/",
                                value_dim(), ", ", ToString(pattern())));
  }
  const int64_t table_keys = args.block_table.dim(1) * args.kv_cache.block_size();
  for (int64_t seq = 0; seq < num_seqs(); ++seq) {
    if (query_len(seq) > 0 && context_len(seq) > table_keys) {
      return WantGot("block_table",
                     absl::StrCat("blocks for ", context_len(seq), " tokens of sequence ", seq),
                     absl::StrCat(table_keys));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels
