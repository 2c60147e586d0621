#include "base/status_macros.h"
#include "kernels/cuda/attention/attention_reference.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/row_launch.h"
#include "kernels/cuda/ops.h"

namespace quire::kernels::cuda {

absl::Status AttentionReference(Device& device, const PagedAttentionArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  const CacheView& cache = args.kv_cache;
  if (cache.block_size() == 0) return WantGot("kv_cache", "block_size > 0", cache.ToString());
  RETURN_IF_ERROR(CheckAligned({{"kv_cache", &cache.keys}, {"kv_cache", &cache.values}}));
  if (cache.block_stride() * SizeOf(cache.dtype()) % 16 != 0) {
    return WantGot("kv_cache", "blocks a multiple of 16 bytes apart",
                   absl::StrCat(cache.block_stride(), " elements"));
  }
  const int64_t num_tokens = args.query.dim(0), num_heads = args.query.dim(1);
  if (num_tokens == 0 || num_heads == 0 || args.block_table.dim(0) == 0) return absl::OkStatus();
  const AttentionReferenceParams params = {.out = args.out.raw(),
                                           .query = args.query.raw(),
                                           .keys = cache.keys.raw(),
                                           .values = cache.values.raw(),
                                           .block_table = args.block_table.data<int32_t>(),
                                           .context_lens = args.context_lens.data<int32_t>(),
                                           .query_starts = args.query_starts.data<int32_t>(),
                                           .slopes = args.alibi_slopes.data<float>(),
                                           .sinks = args.sinks.data<float>(),
                                           .num_tokens = num_tokens,
                                           .max_blocks = args.block_table.dim(1),
                                           .block_stride = cache.block_stride(),
                                           .num_seqs = static_cast<int>(args.block_table.dim(0)),
                                           .num_heads = static_cast<int>(num_heads),
                                           .num_kv_heads = static_cast<int>(cache.num_kv_heads()),
                                           .key_dim = static_cast<int>(cache.key_dim()),
                                           .value_dim = static_cast<int>(cache.value_dim()),
                                           .block_size = static_cast<int>(cache.block_size()),
                                           .scale = args.scale,
                                           .soft_cap = args.soft_cap,
                                           .k_scale = cache.scales.k,
                                           .v_scale = cache.scales.v,
                                           .pattern = args.pattern,
                                           .alibi_is_rounded = args.alibi_is_rounded};
  const int64_t num_blocks = (num_tokens * num_heads + kReferenceWarps - 1) / kReferenceWarps;
  return WithElementType(args.query.dtype(), [&](auto element) {
    return WithCacheType(cache.dtype(), [&](auto cache_element) {
      return Launch(device,
                    {.grid = {static_cast<unsigned>(num_blocks)},
                     .block = {kReferenceThreads},
                     .shared_bytes = kReferenceSharedBytes},
                    &AttentionReferenceKernel<decltype(element), decltype(cache_element)>, params);
    });
  });
}

}  // namespace quire::kernels::cuda
