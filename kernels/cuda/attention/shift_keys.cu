#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "kernels/cuda/attention/shift_keys.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/row_launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/ops/check.h"

namespace quire::kernels::cuda {

absl::Status ShiftKeys(Device& device, const ShiftKeysArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  // A shifted key is rounded anew, and may become longer.
  if (!args.kv_cache.key_norms.empty()) {
    return WantGot("kv_cache", "no key_norms where keys are shifted",
                   absl::StrCat("those of ", args.kv_cache.num_kv_heads(), " KV heads"));
  }
  const int64_t rope_half = args.rope_table.dim(1);
  const int64_t num_pairs = args.kv_cache.num_kv_heads() * args.kv_cache.block_size() * rope_half;
  if (num_pairs == 0) return absl::OkStatus();
  constexpr int64_t kPairsPerBlock = int64_t{kShiftThreads} * kPairsPerShiftThread;
  ShiftKeysParams params = {.keys = args.kv_cache.keys.raw(),
                            .rope_table = args.rope_table.data<float>(),
                            .block_stride = args.kv_cache.block_stride(),
                            .num_pairs = num_pairs,
                            .key_dim = static_cast<int>(args.kv_cache.key_dim()),
                            .rope_half = static_cast<int>(rope_half),
                            .inverse_scale = 1.0f / args.table_scale,
                            .interleaved = args.rope_layout == RopeLayout::kInterleaved,
                            .shifts = {}};
  for (size_t first = 0; first < args.shifts.size(); first += kMaxShiftsPerLaunch) {
    const auto shifts = args.shifts.subspan(
        first, std::min<size_t>(kMaxShiftsPerLaunch, args.shifts.size() - first));
    std::copy(shifts.begin(), shifts.end(), params.shifts);
    RETURN_IF_ERROR(WithCacheType(args.kv_cache.dtype(), [&](auto cache) {
      return Launch(
          device,
          {.grid = {static_cast<unsigned>((num_pairs + kPairsPerBlock - 1) / kPairsPerBlock),
                    static_cast<unsigned>(shifts.size())},
           .block = {kShiftThreads}},
          &ShiftKeysKernel<decltype(cache)>, params);
    }));
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels::cuda
