#include <algorithm>

#include "base/status_macros.h"
#include "kernels/cuda/attention/qkv_post.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/row_launch.h"
#include "kernels/cuda/ops.h"

namespace quire::kernels::cuda {

absl::Status QkvPost(Device& device, const QkvPostArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  const CacheView& cache_view = args.kv_cache;
  const int64_t num_tokens = args.query.dim(0);
  const int64_t key_dim = cache_view.key_dim(), value_dim = cache_view.value_dim();
  for (const int64_t dim : {key_dim, value_dim}) {
    if (dim > 0 && dim % 2 == 0) continue;
    return WantGot("kv_cache", "keys and values of an even size on CUDA", absl::StrCat(dim));
  }
  const int64_t block_size = cache_view.block_size();
  if (block_size == 0) return WantGot("kv_cache", "block_size > 0", cache_view.ToString());
  if (num_tokens == 0) return absl::OkStatus();
  const bool rope = args.rope_layout != RopeLayout::kNone;
  const int64_t num_heads = args.query.dim(1), num_kv_heads = cache_view.num_kv_heads();
  const int64_t total_heads = num_heads + 2 * num_kv_heads;
  const QkNorm& norm = args.qk_norm;
  const bool norms = !norm.query_weight.empty();
  const bool norm_by_head = norms && norm.query_weight.dim(0) == key_dim;
  const int64_t longest = std::max(key_dim, value_dim);
  // Without QK-norm, sections may have any number of heads. The number chosen here gives each
  // thread about one pair.
  const int64_t heads_per_section =
      norm_by_head ? 1
      : norms      ? 0
                   : std::clamp<int64_t>(2 * kMaxRowThreads / longest, 1, total_heads);
  const int64_t num_sections =
      heads_per_section == 0 ? 3 : (total_heads + heads_per_section - 1) / heads_per_section;
  const int64_t section = heads_per_section == 0 ? num_heads : heads_per_section;
  const QkvPostParams params = {.query = args.query.raw(),
                                .keys = cache_view.keys.raw(),
                                .values = cache_view.values.raw(),
                                .qkv = args.qkv.raw(),
                                .positions = args.positions.data<int32_t>(),
                                .slot_mapping = args.slot_mapping.data<int64_t>(),
                                .rope_table = args.rope_table.data<float>(),
                                .query_scales = args.query_scales.data<float>(),
                                .bias = args.bias.data<float>(),
                                .query_norm = norm.query_weight.data<float>(),
                                .key_norm = norm.key_weight.data<float>(),
                                .largest_keys = cache_view.key_norms.data<float>(),
                                .num_slots = cache_view.num_blocks() * block_size,
                                .num_positions = NumPositions(args),
                                .block_stride = cache_view.block_stride(),
                                .num_heads = static_cast<int>(num_heads),
                                .num_kv_heads = static_cast<int>(num_kv_heads),
                                .key_dim = static_cast<int>(key_dim),
                                .value_dim = static_cast<int>(value_dim),
                                .block_size = static_cast<int>(block_size),
                                .rope_half = rope ? static_cast<int>(args.rope_table.dim(1)) : 0,
                                .heads_per_section = static_cast<int>(heads_per_section),
                                .clip = args.clip,
                                .norm_eps = norm.eps,
                                .value_scale = args.value_scale,
                                .k_scale = cache_view.scales.k,
                                .v_scale = cache_view.scales.v,
                                .interleaved = args.rope_layout == RopeLayout::kInterleaved,
                                .layer_norm = norm.kind == NormKind::kLayerNorm,
                                .norm_by_head = norm_by_head};
  return WithElementType(args.query.dtype(), [&](auto element) {
    return WithCacheType(cache_view.dtype(), [&](auto cache) {
      return Launch(
          device,
          {.grid = {static_cast<unsigned>(num_tokens), static_cast<unsigned>(num_sections)},
           .block = {RowThreads(section * longest, 2)},
           .shared_bytes = kBlockSumBytes},
          &QkvPostKernel<decltype(element), decltype(cache)>, params);
    });
  });
}

}  // namespace quire::kernels::cuda
