#include <algorithm>

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/row_launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/product/cuda_weight.h"
#include "kernels/cuda/product/linear_epilogue.cuh"
#include "kernels/cuda/product/weight_product.h"

namespace quire::kernels::cuda {

namespace {

// Checks the arguments of the epilogue. This is called before the GEMM, so that errors are returned
// before any work is enqueued.
absl::Status CheckEpilogue(const LinearArgs& args) {
  return WithElementType(args.out.dtype(), [&](auto element) {
    return WithVectorOf<decltype(element)>(args.out.dim(1), [&](auto count) {
      if (decltype(count)::value == 1) return absl::OkStatus();
      return CheckAligned({{"out", &args.out}, {"bias", &args.bias}, {"residual", &args.residual}});
    });
  });
}

// Enqueues out = cap(act(y + bias)) + residual for the tokens of `y`, where cap is the soft cap.
// The shape of `y` is [tokens, rows of the weight].
absl::Status Epilogue(Device& device, const LinearArgs& args, const float* y, TensorView out,
                      TensorView residual) {
  const int64_t num_tokens = out.dim(0), cols = out.dim(1);
  return WithElementType(out.dtype(), [&](auto element) {
    using T = decltype(element);
    return WithVectorOf<T>(cols, [&](auto count) -> absl::Status {
      constexpr int kCount = decltype(count)::value;
      constexpr int64_t kPerBlock = int64_t{kEpilogueThreads} * kCount;
      const LinearEpilogueParams params = {.out = out.raw(),
                                           .y = y,
                                           .bias = args.bias.data<float>(),
                                           .residual = residual.raw(),
                                           .cols = cols,
                                           .activation = args.activation,
                                           .activation_limit = args.activation_limit,
                                           .soft_cap = args.soft_cap};
      return Launch(device,
                    {.grid = {static_cast<unsigned>(num_tokens),
                              static_cast<unsigned>((cols + kPerBlock - 1) / kPerBlock)},
                     .block = {kEpilogueThreads}},
                    &LinearEpilogueKernel<T, kCount>, params);
    });
  });
}

// The scratch memory of one call.
struct LinearScratch {
  ProductScratch product;
  int64_t sums_bytes;  // from the start, for the float32 sums before the epilogue
};

bool IsWhole(const CudaWeight& weight) { return !weight.is_packed() && !weight.has_scales(); }

LinearScratch DivideScratch(const CudaWeight& weight, const DeviceBuffer& memory, GemmRows rows) {
  // Three quarters for sums: of 256 MiB, the other 64 hold 8192 rows of 4096 in bf16, enough to
  // fill a GPU in one GEMM.
  int64_t product_bytes = IsWhole(weight) ? 0 : memory.bytes() - memory.bytes() / 4 * 3;
  if (rows == GemmRows::kFixed) {
    product_bytes = std::max(
        product_bytes, std::min(memory.bytes(), FixedRowsScratchBytes(weight, weight.rows())));
  }
  if (product_bytes == 0) return {.product = {.rows = rows}, .sums_bytes = memory.bytes()};
  const int64_t sums_bytes =
      (memory.bytes() - product_bytes) / kScratchAlignment * kScratchAlignment;
  return {.product = {.memory = static_cast<char*>(memory.data()) + sums_bytes,
                      .bytes = memory.bytes() - sums_bytes,
                      .rows = rows},
          .sums_bytes = sums_bytes};
}

// Returns true if the GEMM alone suffices. The GEMM can add a residual only if `out` holds the
// residual.
bool IsPlain(const LinearArgs& args, DType dtype) {
  return args.bias.empty() && args.activation == Activation::kNone && args.soft_cap == 0.0f &&
         (args.residual.empty() || args.residual.raw() == args.out.raw()) &&
         (args.out.dtype() == dtype || args.out.dtype() == DType::kF32);
}

// Returns true if the GEMM writes logits to `out`, and the soft cap is applied there, without the
// scratch memory. A row of logits is as long as the vocabulary, so few tokens would fit into the
// scratch memory, and the weight would be read once for every few tokens.
bool AreLogits(const LinearArgs& args) {
  return args.soft_cap > 0.0f && args.out.dtype() == DType::kF32 && !IsGated(args.activation) &&
         args.residual.empty();
}

}  // namespace

int64_t LinearScratchBytes(const LinearArgs& args, GemmRows gemm_rows) {
  const auto& weight = static_cast<const CudaWeight&>(*args.weight);
  const int64_t product =
      gemm_rows == GemmRows::kFixed ? FixedRowsScratchBytes(weight, weight.rows()) : 0;
  if (IsPlain(args, weight.dtype()) || AreLogits(args)) return product;
  const int64_t num_tokens =
      base::RoundUp(args.input.dim(0), gemm_rows == GemmRows::kFixed ? kFixedRows : int64_t{1});
  const int64_t sums =
      base::RoundUp(num_tokens * weight.rows() * SizeOf(DType::kF32), kScratchAlignment);
  const int64_t with_quarter = IsWhole(weight) ? sums : base::CeilDiv(sums, int64_t{3}) * 4;
  return std::max(with_quarter, sums + product);
}

absl::Status Linear(Device& device, const LinearArgs& args, const DeviceBuffer& scratch,
                    GemmRows gemm_rows) {
  RETURN_IF_ERROR(Validate(args));
  const auto& weight = static_cast<const CudaWeight&>(*args.weight);
  if (args.input.dtype() != weight.dtype()) {
    return WantGot("input", absl::StrCat(base::ToAbsl(Name(weight.dtype())), ", as the weight"),
                   Name(args.input.dtype()));
  }
  const int64_t num_tokens = args.input.dim(0), rows = weight.rows();
  if (num_tokens == 0) return absl::OkStatus();
  const LinearScratch divided = DivideScratch(weight, scratch, gemm_rows);
  GemmArgs gemm = {.a = args.input.raw(), .lda = weight.cols(), .ldd = rows};
  if (IsPlain(args, weight.dtype())) {
    gemm.d = args.out.raw();
    gemm.m = num_tokens;
    gemm.output_type = args.out.dtype();
    gemm.accumulate = !args.residual.empty();
    return WeightProduct(device, weight, gemm, divided.product);
  }

  if (AreLogits(args)) {
    RETURN_IF_ERROR(CheckEpilogue(args));
    gemm.d = args.out.raw();
    gemm.m = num_tokens;
    gemm.output_type = DType::kF32;
    RETURN_IF_ERROR(WeightProduct(device, weight, gemm, divided.product));
    return Epilogue(device, args, args.out.data<float>(), args.out, {});
  }
  int64_t tokens_at_once = divided.sums_bytes / (rows * SizeOf(DType::kF32));
  if (tokens_at_once == 0) {
    return WantGot("weight",
                   absl::StrCat("at most ", divided.sums_bytes / SizeOf(DType::kF32), " rows"),
                   absl::StrCat(rows));
  }
  // Only the last slice of the last product is not full.
  if (gemm_rows == GemmRows::kFixed && tokens_at_once > kFixedRows) {
    tokens_at_once -= tokens_at_once % kFixedRows;
  }
  RETURN_IF_ERROR(CheckEpilogue(args));
  RETURN_IF_ERROR(CheckWeightProduct(device, weight, gemm, std::min(tokens_at_once, num_tokens),
                                     divided.product));
  gemm.d = scratch.data();
  gemm.output_type = DType::kF32;
  for (int64_t first = 0; first < num_tokens; first += tokens_at_once) {
    gemm.m = std::min(tokens_at_once, num_tokens - first);
    gemm.a = args.input.Rows(first, gemm.m).raw();
    RETURN_IF_ERROR(WeightProduct(device, weight, gemm, divided.product));
    RETURN_IF_ERROR(Epilogue(
        device, args, static_cast<const float*>(scratch.data()), args.out.Rows(first, gemm.m),
        args.residual.empty() ? TensorView() : args.residual.Rows(first, gemm.m)));
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels::cuda
