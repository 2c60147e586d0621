#include "base/status_macros.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/qkv_post.cuh"
#include "kernels/cuda/row_launch.h"

namespace quire::kernels::cuda {

absl::Status QkvPost(Device& device, const QkvPostArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  const int64_t num_tokens = args.query.dim(0), head_dim = args.query.dim(2);
  if (head_dim == 0 || head_dim % 2 != 0) {
    return WantGot("query", "an even head_dim on CUDA", absl::StrCat(head_dim));
  }
  const int64_t block_size = args.kv_cache.dim(3);
  if (block_size == 0) return WantGot("kv_cache", "block_size > 0", args.kv_cache.ToString());
  if (num_tokens == 0) return absl::OkStatus();
  const bool rope = args.rope_layout != RopeLayout::kNone;
  const int64_t pairs = args.qkv.dim(1) / 2;
  const QkvPostParams params = {.query = args.query.raw(),
                                .kv_cache = args.kv_cache.raw(),
                                .qkv = args.qkv.raw(),
                                .positions = args.positions.data<int32_t>(),
                                .slot_mapping = args.slot_mapping.data<int64_t>(),
                                .rope_table = args.rope_table.data<float>(),
                                .num_slots = args.kv_cache.dim(0) * block_size,
                                .max_positions = rope ? args.rope_table.dim(0) : 0,
                                .block_stride = args.kv_cache.row_stride(),
                                .num_heads = static_cast<int>(args.query.dim(1)),
                                .num_kv_heads = static_cast<int>(args.kv_cache.dim(2)),
                                .head_dim = static_cast<int>(head_dim),
                                .block_size = static_cast<int>(block_size),
                                .rope_half = rope ? static_cast<int>(args.rope_table.dim(1)) : 0,
                                .interleaved = args.rope_layout == RopeLayout::kInterleaved};
  return WithElementType(args.query.dtype(), [&](auto element) {
    return WithElementType(args.kv_cache.dtype(), [&](auto cache) {
      return Launch(
          device,
          {.grid = {static_cast<unsigned>(num_tokens),
                    static_cast<unsigned>((pairs + kQkvPostThreads - 1) / kQkvPostThreads)},
           .block = {kQkvPostThreads}},
          &QkvPostKernel<decltype(element), decltype(cache)>, params);
    });
  });
}

}  // namespace quire::kernels::cuda
