#include "kernels/ops/qkv_post.h"

#include <cmath>

#include "base/status_macros.h"
#include "kernels/ops/check.h"

namespace quire::kernels {
namespace {

absl::Status ValidateQkNorm(const QkNorm& norm, int64_t num_heads, int64_t num_kv_heads,
                            int64_t key_dim) {
  if (norm.query_weight.empty() && norm.key_weight.empty()) return absl::OkStatus();
  const bool by_head = !norm.query_weight.empty() && norm.query_weight.dim(0) == key_dim;
  RETURN_IF_ERROR(CheckTensor("qk_norm.query_weight", norm.query_weight, {DType::kF32},
                              {by_head ? key_dim : num_heads * key_dim}));
  RETURN_IF_ERROR(CheckTensor("qk_norm.key_weight", norm.key_weight, {DType::kF32},
                              {by_head ? key_dim : num_kv_heads * key_dim}));
  if (!(norm.eps >= 0.0f)) return WantGot("qk_norm.eps", ">= 0", absl::StrCat(norm.eps));
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const QkvPostArgs& args) {
  RETURN_IF_ERROR(CheckActivations("query", args.query, {kAnyDim, kAnyDim, kAnyDim}));
  const int64_t num_tokens = args.query.dim(0);
  const int64_t num_heads = args.query.dim(1);
  const int64_t key_dim = args.query.dim(2);
  RETURN_IF_ERROR(CheckKvCache(args.kv_cache, key_dim, kAnyDim));
  const int64_t num_kv_heads = args.kv_cache.num_kv_heads();
  if (num_kv_heads <= 0 || num_heads % num_kv_heads != 0) {
    return WantGot("query", absl::StrCat("num_heads a multiple of num_kv_heads = ", num_kv_heads),
                   absl::StrCat(num_heads));
  }
  const int64_t row =
      (num_heads + num_kv_heads) * key_dim + num_kv_heads * args.kv_cache.value_dim();
  RETURN_IF_ERROR(CheckActivations("qkv", args.qkv, {num_tokens, row}));
  RETURN_IF_ERROR(CheckSameDType("qkv", args.qkv, args.query));
  RETURN_IF_ERROR(CheckTensor("slot_mapping", args.slot_mapping, {DType::kI64}, {num_tokens}));
  if (!args.bias.empty()) {
    RETURN_IF_ERROR(CheckTensor("bias", args.bias, {DType::kF32}, {args.qkv.dim(1)}));
  }
  if (!std::isfinite(args.value_scale)) {
    return WantGot("value_scale", "finite", absl::StrCat(args.value_scale));
  }
  if (!(args.clip >= 0.0f)) return WantGot("clip", ">= 0", absl::StrCat(args.clip));
  RETURN_IF_ERROR(ValidateQkNorm(args.qk_norm, num_heads, num_kv_heads, key_dim));
  const bool rope = args.rope_layout != RopeLayout::kNone;
  if (rope) {
    RETURN_IF_ERROR(
        CheckTensor("rope_table", args.rope_table, {DType::kF32}, {kAnyDim, kAnyDim, 2}));
    if (2 * args.rope_table.dim(1) > key_dim) {
      return WantGot("rope_table", absl::StrCat("rope_dim / 2 at most ", key_dim / 2),
                     args.rope_table.ToString());
    }
  }
  if (!args.query_scales.empty()) {
    RETURN_IF_ERROR(CheckTensor("query_scales", args.query_scales, {DType::kF32},
                                {rope ? args.rope_table.dim(0) : kAnyDim}));
  }
  if (!rope && args.query_scales.empty()) return absl::OkStatus();
  return CheckTensor("positions", args.positions, {DType::kI32}, {num_tokens});
}

int64_t NumPositions(const QkvPostArgs& args) {
  if (args.rope_layout != RopeLayout::kNone) return args.rope_table.dim(0);
  return args.query_scales.empty() ? 0 : args.query_scales.dim(0);
}

}  // namespace quire::kernels
