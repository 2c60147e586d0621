#include "base/status_macros.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/row_launch.h"
#include "kernels/cuda/embed.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/product/cuda_weight.h"
#include "kernels/cuda/product/fp8_weight.h"

namespace quire::kernels::cuda {

namespace {

absl::Status EmbedPart(Device& device, const EmbedArgs& args, const CudaWeight& weight,
                       const CudaWeightPart& part) {
  const int64_t cols = weight.cols();
  const auto num_tokens = static_cast<unsigned>(args.out.dim(0));
  const bool of_blocks = part.scales == GemmScales::kBlocks;
  const EmbedParams params = {
      .out = args.out.raw(),
      .token_ids = args.token_ids.data<int32_t>(),
      .table = weight.DataOf(part),
      .first_row = part.first_row,
      .num_rows = part.num_rows,
      .cols = cols,
      .rows = weight.rows(),
      .scale = args.scale,
      .scales = of_blocks || part.scales == GemmScales::kRows ? weight.ScalesOf(part) : nullptr,
      .rows_of_scale = RowsOfScales(part.scales),
      .cols_of_scale = of_blocks ? kScaledGemmBlock : cols,
      .scale_stride = of_blocks ? BlockScaleStride(cols) : 1};
  return WithElementType(args.out.dtype(), [&](auto element) {
    using T = decltype(element);
    if (part.scales != GemmScales::kNone) {
      return Launch(device, {.grid = {num_tokens}, .block = {RowThreads(cols, kLaneCols)}},
                    &EmbedFp8Kernel<T>, params);
    }
    if (part.packed) {
      return WithPackedType(
          *part.packed,
          [&](auto type) {
            return Launch(device, {.grid = {num_tokens}, .block = {RowThreads(cols, kLaneCols)}},
                          &EmbedPackedKernel<T, decltype(type)::value>, params);
          },
          WantGot("weight", "a type with a packed form", Traits(*part.packed).name));
    }
    return WithElementType(weight.dtype(), [&](auto table) {
      return WithVectorOf<T>(cols, [&](auto count) {
        constexpr int kCount = decltype(count)::value;
        return Launch(device, {.grid = {num_tokens}, .block = {RowThreads(cols, kCount)}},
                      &EmbedKernel<decltype(table), T, kCount>, params);
      });
    });
  });
}

}  // namespace

absl::Status Embed(Device& device, const EmbedArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  const auto& weight = static_cast<const CudaWeight&>(*args.weight);
  if (args.out.dim(0) == 0) return absl::OkStatus();
  RETURN_IF_ERROR(WithElementType(args.out.dtype(), [&](auto element) {
    return WithVectorOf<decltype(element)>(weight.cols(), [&](auto count) {
      return decltype(count)::value == 1 ? absl::OkStatus() : CheckAligned({{"out", &args.out}});
    });
  }));
  for (const CudaWeightPart& part : weight.parts()) {
    RETURN_IF_ERROR(EmbedPart(device, args, weight, part));
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels::cuda
