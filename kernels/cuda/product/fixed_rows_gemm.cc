#include "kernels/cuda/product/fixed_rows_gemm.h"

#include <algorithm>

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/gemm_shape.h"

namespace quire::kernels::cuda {
namespace {

int64_t InputBytes(int64_t lda, DType type) {
  return base::RoundUp(kFixedRows * lda * SizeOf(type), kScratchAlignment);
}

// The bytes from the first to the last element of rows of `cols` elements.
int64_t SpanBytes(int64_t num_rows, int64_t stride, int64_t cols, DType type) {
  return ((num_rows - 1) * stride + cols) * SizeOf(type);
}

// Enqueues the product of up to kFixedRows rows.
absl::Status MultiplySlice(Device& device, GemmArgs args, char* scratch) {
  const int64_t num_rows = args.m;
  args.m = kFixedRows;
  if (num_rows < kFixedRows || AlignmentOf(args.a) < kScratchAlignment) {
    // The other rows of the scratch memory keep what they have. Nobody reads their products.
    RETURN_IF_ERROR(
        device.CopyOnDevice(scratch, args.a, SpanBytes(num_rows, args.lda, args.k, args.type)));
    args.a = scratch;
  }
  if (num_rows == kFixedRows && AlignmentOf(args.d) >= kScratchAlignment) return device.Gemm(args);
  return PaddedGemm(device, args, num_rows, scratch + InputBytes(args.lda, args.type));
}

}  // namespace

int64_t FixedRowsScratchBytes(int64_t lda, int64_t ldd, DType type) {
  return InputBytes(lda, type) + kFixedRows * ldd * SizeOf(DType::kF32);
}

absl::Status PaddedGemm(Device& device, GemmArgs args, int64_t num_rows, void* padded) {
  void* const out = args.d;
  args.d = padded;
  const int64_t bytes = SpanBytes(num_rows, args.ldd, args.n, args.output_type);
  // The columns between two rows of the product are copied back as they are.
  if (args.accumulate || args.n < args.ldd) {
    RETURN_IF_ERROR(device.CopyOnDevice(padded, out, bytes));
  }
  RETURN_IF_ERROR(device.Gemm(args));
  return device.CopyOnDevice(out, padded, bytes);
}

absl::Status FixedRowsGemm(Device& device, const GemmArgs& args, void* scratch) {
  for (int64_t first = 0; first < args.m; first += kFixedRows) {
    GemmArgs slice = args;
    slice.m = std::min(kFixedRows, args.m - first);
    slice.a = static_cast<const char*>(args.a) + first * args.lda * SizeOf(args.type);
    slice.d = static_cast<char*>(args.d) + first * args.ldd * SizeOf(args.output_type);
    RETURN_IF_ERROR(MultiplySlice(device, slice, static_cast<char*>(scratch)));
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels::cuda
