#include "kernels/ops/paged_attention.h"

#include <cmath>

#include "base/status_macros.h"
#include "kernels/ops/check.h"

namespace quire::kernels {
namespace {

absl::Status Validate(const AttentionPattern& pattern) {
  if (pattern.sees_all() ? pattern.tokens == 0 : pattern.tokens > 0) return absl::OkStatus();
  return WantGot("pattern", pattern.sees_all() ? "no tokens where all keys are seen" : "tokens > 0",
                 absl::StrCat(pattern.tokens));
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
  }
  return "an unknown rule";
}

absl::Status Validate(const AttentionPlanArgs& args) {
  if (args.num_kv_heads <= 0 || args.num_heads <= 0 || args.num_heads % args.num_kv_heads != 0) {
    return WantGot("plan", "num_heads a positive multiple of num_kv_heads",
                   absl::StrCat(args.num_heads, " and ", args.num_kv_heads));
  }
  if (args.head_dim <= 0) return WantGot("plan", "head_dim > 0", absl::StrCat(args.head_dim));
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
  return absl::OkStatus();
}

absl::Status Validate(const PagedAttentionArgs& args) {
  RETURN_IF_ERROR(CheckActivations("query", args.query, {kAnyDim, kAnyDim, kAnyDim}));
  const int64_t num_heads = args.query.dim(1);
  const int64_t head_dim = args.query.dim(2);
  if (head_dim <= 0 || head_dim % 8 != 0 || head_dim > 256) {
    return WantGot("query", "head_dim a multiple of 8, at most 256", absl::StrCat(head_dim));
  }
  RETURN_IF_ERROR(CheckActivations("out", args.out, {args.query.dim(0), num_heads, head_dim}));
  RETURN_IF_ERROR(CheckSameDType("out", args.out, args.query));
  RETURN_IF_ERROR(CheckKvCache(args.kv_cache, head_dim));
  const int64_t num_kv_heads = args.kv_cache.dim(2);
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
  num_heads_ = args.num_heads;
  num_kv_heads_ = args.num_kv_heads;
  head_dim_ = args.head_dim;
  pattern_ = args.pattern;
}

absl::Status AttentionPlan::CheckMatches(const PagedAttentionArgs& args) const {
  if (num_heads_ != args.query.dim(1) || num_kv_heads_ != args.kv_cache.dim(2) ||
      head_dim_ != args.query.dim(2) || pattern_ != args.pattern ||
      num_seqs() != args.block_table.dim(0) || num_tokens_ != args.query.dim(0)) {
    return WantGot(
        "plan",
        absl::StrCat("one for ", args.block_table.dim(0), " sequences, query ",
                     args.query.ToString(), ", kv_cache ", args.kv_cache.ToString(), ", ",
                     ToString(args.pattern)),
        absl::StrCat(num_seqs(), " sequences of ", num_tokens_, " tokens, heads ", num_heads_, "/",
                     num_kv_heads_, " of ", head_dim_, ", ", ToString(pattern_)));
  }
  const int64_t table_keys = args.block_table.dim(1) * args.kv_cache.dim(3);
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
