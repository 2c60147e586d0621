#include <algorithm>

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/product/wgmma_grouped_gemm.cuh"
#include "kernels/cuda/product/wgmma_grouped_gemm.h"

namespace quire::kernels::cuda {

bool SuitsWgmma(const GroupedGemmParams& params) {
  const auto aligned = [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  };
  return params.depth % 8 == 0 && params.cols % 8 == 0 && aligned(params.input) &&
         aligned(params.weight) && aligned(params.out);
}

template <typename T, bool kGated>
absl::Status WgmmaGroupedGemm(Device& device, const GroupedGemmParams& params, int64_t num_rows) {
  using Shape = WgmmaGemmShape;
  WgmmaGemmParams of_kernel = {.gemm = params};
  const int64_t row_bytes = params.depth * static_cast<int64_t>(sizeof(T));
  ASSIGN_OR_RETURN(of_kernel.weight,
                   device.MakeTensorMap(
                       {.data = params.weight,
                        .rank = 3,
                        .dims = {params.depth, params.cols, params.num_groups * (kGated ? 2 : 1)},
                        .strides = {sizeof(T), row_bytes, params.cols * row_bytes},
                        .box = {Shape::kDepth, Shape::kBoxRows, 1}}));
  const int64_t products = MostGroupTiles(params, num_rows, Shape::kRows) *
                           base::CeilDiv(params.cols, int64_t{Shape::Cols(kGated)});
  const auto blocks = std::min<int64_t>(products, device.info().num_sms);
  return Launch(device,
                {.grid = {static_cast<unsigned>(blocks)},
                 .block = {Shape::kThreads},
                 .shared_bytes = kWgmmaGemmSharedBytes},
                &WgmmaGroupedGemmKernel<T, kGated>, of_kernel);
}

template absl::Status WgmmaGroupedGemm<Bf16, true>(Device&, const GroupedGemmParams&, int64_t);
template absl::Status WgmmaGroupedGemm<Bf16, false>(Device&, const GroupedGemmParams&, int64_t);
template absl::Status WgmmaGroupedGemm<F16, true>(Device&, const GroupedGemmParams&, int64_t);
template absl::Status WgmmaGroupedGemm<F16, false>(Device&, const GroupedGemmParams&, int64_t);

}  // namespace quire::kernels::cuda
