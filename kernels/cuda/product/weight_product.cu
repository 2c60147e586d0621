#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/product/dequantize_weight.cuh"
#include "kernels/cuda/product/fp8_product.h"
#include "kernels/cuda/product/packed_batch_gemm.cuh"
#include "kernels/cuda/product/packed_choice.h"
#include "kernels/cuda/product/packed_gemm.cuh"
#include "kernels/cuda/product/packed_launch.h"
#include "kernels/cuda/product/weight_product.h"

namespace quire::kernels::cuda {
namespace {

template <typename T, WeightType kType, int kTokenTiles>
absl::Status LaunchPacked(Device& device, const PackedGemmParams& params) {
  using Shape = PackedGemmShape<kType, kTokenTiles>;
  return Launch(device,
                {.grid = {static_cast<unsigned>(base::CeilDiv(params.rows, int64_t{Shape::kRows}))},
                 .block = {Shape::kThreads},
                 .shared_bytes = Shape::kSharedBytes},
                &PackedGemmKernel<T, kType, kTokenTiles>, params);
}

template <typename T, WeightType kType, int kTokenTiles>
absl::Status LaunchPackedBatch(Device& device, const PackedGemmParams& product,
                               const ProductScratch& scratch) {
  using Shape = PackedBatchShape<kType, kTokenTiles>;
  const int64_t row_blocks = base::CeilDiv(product.rows, kPackedBatchRows);
  const int64_t parts_bytes =
      int64_t{kPackedParts} * product.num_tokens * product.rows * SizeOf(DType::kF32);
  const int blocks_per_row =
      parts_bytes <= scratch.bytes ? PackedBlocksPerRow(product.rows, device.info().num_sms) : 1;
  auto* const parts = static_cast<float*>(blocks_per_row > 1 ? scratch.memory : nullptr);
  RETURN_IF_ERROR(Launch(
      device,
      {.grid = {static_cast<unsigned>(row_blocks), static_cast<unsigned>(blocks_per_row)},
       .block = {Shape::kThreads},
       .shared_bytes = Shape::kSharedBytes},
      &PackedBatchGemmKernel<T, kType, kTokenTiles>,
      {.product = product, .parts_per_block = kPackedParts / blocks_per_row, .parts = parts}));
  if (parts == nullptr) return absl::OkStatus();
  return Launch(
      device,
      {.grid = {static_cast<unsigned>(base::CeilDiv(product.rows, int64_t{kAddPartsThreads})),
                static_cast<unsigned>(product.num_tokens)},
       .block = {kAddPartsThreads},
       .overlaps_previous = true},
      &AddPackedPartsKernel<T>,
      {.product = product, .parts = parts, .scale = 1.0f / kLaneScale<T, kType>});
}

// Enqueues the product of up to kPackedBatch tokens with packed rows at `data`. A token has the
// same bits in every kernel.
absl::Status PackedGemm(Device& device, WeightType type, const uint8_t* data, const GemmArgs& args,
                        const ProductScratch& scratch) {
  const PackedGemmParams params = {.d = args.d,
                                   .a = args.a,
                                   .weight = data,
                                   .rows = args.n,
                                   .cols = args.k,
                                   .lda = args.lda,
                                   .ldd = args.ldd,
                                   .num_tokens = static_cast<int32_t>(args.m),
                                   .writes_floats = args.output_type == DType::kF32,
                                   .accumulate = args.accumulate};
  return WithPackedTypes(args.type, type, [&](auto element, auto constant) {
    using T = decltype(element);
    constexpr WeightType kType = decltype(constant)::value;
    if (args.m <= 8) return LaunchPacked<T, kType, 1>(device, params);
    if (args.m <= 16) return LaunchPacked<T, kType, 2>(device, params);
    return args.m <= 32 ? LaunchPackedBatch<T, kType, 4>(device, params, scratch)
                        : LaunchPackedBatch<T, kType, 8>(device, params, scratch);
  });
}

// Enqueues the product with packed rows at `data`, kPackedBatch tokens at a time.
absl::Status PackedGemmInBatches(Device& device, WeightType type, const uint8_t* data,
                                 const GemmArgs& args, const ProductScratch& scratch) {
  for (int64_t first = 0; first < args.m; first += kPackedBatch) {
    GemmArgs batch = args;
    batch.m = std::min(kPackedBatch, args.m - first);
    batch.a = static_cast<const char*>(args.a) + first * args.lda * SizeOf(args.type);
    batch.d = static_cast<char*>(args.d) + first * args.ldd * SizeOf(args.output_type);
    RETURN_IF_ERROR(PackedGemm(device, type, data, batch, scratch));
  }
  return absl::OkStatus();
}

// Enqueues the product with packed rows at `data`, a number of dequantised rows at a time.
absl::Status DequantizedGemm(Device& device, WeightType type, const uint8_t* data, GemmArgs args,
                             const ProductScratch& scratch) {
  const int64_t num_rows = args.n;
  int64_t rows_at_once = scratch.bytes / (args.k * SizeOf(args.type));
  if (rows_at_once > kGroupRows) rows_at_once -= rows_at_once % kGroupRows;
  auto* const out = static_cast<char*>(args.d);
  args.b = scratch.memory;
  args.ldb = args.k;
  for (int64_t first = 0; first < num_rows; first += rows_at_once) {
    args.n = std::min(rows_at_once, num_rows - first);
    const DequantizeWeightParams params = {.out = scratch.memory,
                                           .weight = data,
                                           .first_row = first,
                                           .num_rows = args.n,
                                           .cols = args.k};
    RETURN_IF_ERROR(DequantizeRows(device, args.type, type, params));
    args.d = out + first * SizeOf(args.output_type);
    RETURN_IF_ERROR(device.Gemm(args));
  }
  return absl::OkStatus();
}

// Returns MostPackedTokens of a packed part.
int64_t MostTokensOf(const Device& device, const CudaWeight& weight, const CudaWeightPart& part) {
  return MostPackedTokens(*part.packed, part.num_rows, weight.cols(), device.info().num_sms);
}

}  // namespace

int64_t FixedRowsScratchBytes(const CudaWeight& weight, int64_t ldd) {
  const bool is_needed = std::ranges::any_of(
      weight.parts(), [](const CudaWeightPart& part) { return !part.packed.has_value(); });
  return is_needed ? FixedRowsScratchBytes(weight.cols(), ldd, weight.dtype()) : 0;
}

absl::Status DequantizeRows(Device& device, DType dtype, WeightType type,
                            const DequantizeWeightParams& params) {
  const int64_t last_row = params.first_row + params.num_rows - 1;
  const int64_t groups = last_row / kGroupRows - params.first_row / kGroupRows + 1;
  const int64_t tiles = base::CeilDiv(params.cols, int64_t{kPackedTileCols * kDequantizeTiles});
  return WithPackedTypes(dtype, type, [&](auto element, auto constant) {
    return Launch(device,
                  {.grid = {static_cast<unsigned>(groups), static_cast<unsigned>(tiles)},
                   .block = {kDequantizeThreads}},
                  &DequantizeWeightKernel<decltype(element), decltype(constant)::value>, params);
  });
}

absl::Status CheckWeightProduct(const Device& device, const CudaWeight& weight,
                                const GemmArgs& args, int64_t most_tokens,
                                const ProductScratch& scratch) {
  if (scratch.rows == GemmRows::kFixed) {
    const int64_t bytes = FixedRowsScratchBytes(weight, args.ldd);
    if (bytes > scratch.bytes) {
      return WantGot("weight",
                     absl::StrCat("a product of ", kFixedRows, " rows in ", scratch.bytes,
                                  " bytes of scratch memory"),
                     absl::StrCat(bytes, " bytes"));
    }
  }
  if (!weight.is_packed() && !weight.has_scales()) return absl::OkStatus();
  const uintptr_t offset = reinterpret_cast<uintptr_t>(args.a) % 16;
  if (offset != 0) {
    return WantGot("input", "memory at a multiple of 16 bytes", absl::StrCat(offset, " past one"));
  }
  if (weight.has_scales()) {
    if (scratch.rows == GemmRows::kFixed) {
      return WantGot("weight", "no part in e4m3 with GemmRows::kFixed", "one");
    }
    if (QuantizedTokensIn(scratch.bytes, weight, args.ldd) == 0) {
      return WantGot("weight",
                     absl::StrCat("a token in ", scratch.bytes, " bytes of scratch memory"),
                     absl::StrCat(weight.cols(), " cols and ", args.ldd, " of the output"));
    }
  }
  const int64_t width = SizeOf(weight.dtype());
  const bool expands = std::ranges::any_of(weight.parts(), [&](const CudaWeightPart& part) {
    return part.packed && most_tokens > MostTokensOf(device, weight, part);
  });
  if (scratch.rows == GemmRows::kAny && expands && scratch.bytes < weight.cols() * width) {
    return WantGot("weight", absl::StrCat("at most ", scratch.bytes / width, " cols"),
                   absl::StrCat(weight.cols()));
  }
  return absl::OkStatus();
}

absl::Status WeightProduct(Device& device, const CudaWeight& weight, GemmArgs args,
                           const ProductScratch& scratch) {
  RETURN_IF_ERROR(CheckWeightProduct(device, weight, args, args.m, scratch));
  const bool fixed = scratch.rows == GemmRows::kFixed;
  auto* const out = static_cast<char*>(args.d);
  args.k = weight.cols();
  args.type = weight.dtype();
  if (weight.has_scales()) {
    RETURN_IF_ERROR(Fp8Product(device, weight, args, scratch.memory, scratch.bytes));
  }
  for (const CudaWeightPart& part : weight.parts()) {
    if (part.scales != GemmScales::kNone) continue;
    const uint8_t* const data = weight.DataOf(part);
    args.n = part.num_rows;
    args.d = out + part.first_row * SizeOf(args.output_type);
    if (!part.packed) {
      args.b = data;
      args.ldb = args.k;
      RETURN_IF_ERROR(fixed ? FixedRowsGemm(device, args, scratch.memory) : device.Gemm(args));
    } else if (fixed || args.m <= MostTokensOf(device, weight, part)) {
      RETURN_IF_ERROR(PackedGemmInBatches(device, *part.packed, data, args, scratch));
    } else {
      RETURN_IF_ERROR(DequantizedGemm(device, *part.packed, data, args, scratch));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels::cuda
