#include "kernels/cuda/device/device.h"

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "kernels/cuda/device/gemm_shape.h"

namespace quire::kernels::cuda {

namespace {

constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kMaxGridX = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxGridYz = 65535;

absl::Status ValidateStrides(const GemmArgs& args) {
  if (args.m < 0 || args.n < 0 || args.k < 0 || args.lda < args.k || args.ldb < args.k ||
      args.ldd < args.n) {
    return absl::InvalidArgumentError(
        absl::StrFormat("gemm: want rows at least as far apart as they are long, got m %d, n %d, "
                        "k %d, lda %d, ldb %d, ldd %d",
                        args.m, args.n, args.k, args.lda, args.ldb, args.ldd));
  }
  return absl::OkStatus();
}

// Checks a product in e4m3.
absl::Status ValidateScaled(const GemmArgs& args) {
  const DType out = args.output_type;
  if (out != DType::kF32 && out != DType::kF16 && out != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrFormat("gemm: want an output of f32|f16|bf16, got %s", Name(out).data()));
  }
  if (args.scales == GemmScales::kNone || args.a_scales == nullptr || args.b_scales == nullptr) {
    return absl::InvalidArgumentError("gemm: want scales of both matrices in e4m3, got none");
  }
  const int64_t unit = args.scales == GemmScales::kBlocks ? kScaledGemmBlock : kScaledGemmUnit;
  if (args.n % unit != 0 || args.k % unit != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "gemm: want n and k in multiples of %d in e4m3, got n %d, k %d", unit, args.n, args.k));
  }
  if (args.scales == GemmScales::kBlocks && args.m % kScaledGemmTokens != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("gemm: want m in multiples of %d with scales of blocks, got %d",
                        kScaledGemmTokens, args.m));
  }
  const auto is_aligned = [](const void* data, int64_t row_bytes) {
    constexpr int64_t kBytes = 16;
    return reinterpret_cast<uintptr_t>(data) % kBytes == 0 && row_bytes % kBytes == 0;
  };
  if (!is_aligned(args.a, args.lda) || !is_aligned(args.b, args.ldb) ||
      !is_aligned(args.d, args.ldd * SizeOf(out))) {
    return absl::InvalidArgumentError(
        absl::StrFormat("gemm: want matrices and rows at multiples of 16 bytes in e4m3, got lda "
                        "%d, ldb %d, ldd %d and the addresses %p, %p, %p",
                        args.lda, args.ldb, args.ldd, args.a, args.b, args.d));
  }
  return ValidateStrides(args);
}

}  // namespace

absl::StatusOr<double> SecondsOf(Device& device, absl::FunctionRef<absl::Status()> enqueue) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Event> begin, device.CreateEvent());
  ASSIGN_OR_RETURN(const std::unique_ptr<Event> end, device.CreateEvent());
  RETURN_IF_ERROR(device.Mark(*begin));
  RETURN_IF_ERROR(enqueue());
  RETURN_IF_ERROR(device.Mark(*end));
  RETURN_IF_ERROR(device.Synchronize());
  return device.SecondsBetween(*begin, *end);
}

absl::Status Validate(const LaunchConfig& config, const DeviceInfo& info) {
  const Dim3 grid = config.grid, block = config.block;
  const int64_t num_threads = int64_t{block.x} * block.y * block.z;
  if (num_threads < 1 || num_threads > kMaxThreads || block.z > 64) {
    return absl::InvalidArgumentError(
        absl::StrFormat("launch: want a block of 1 to %d threads and z up to 64, got [%u, %u, %u]",
                        kMaxThreads, block.x, block.y, block.z));
  }
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > kMaxGridX || grid.y > kMaxGridYz ||
      grid.z > kMaxGridYz) {
    return absl::InvalidArgumentError(
        absl::StrFormat("launch: want a grid of at least 1 and at most [%d, %d, %d], got "
                        "[%u, %u, %u]",
                        kMaxGridX, kMaxGridYz, kMaxGridYz, grid.x, grid.y, grid.z));
  }
  if (config.shared_bytes < 0 || config.shared_bytes > info.shared_bytes_per_block) {
    return absl::InvalidArgumentError(
        absl::StrFormat("launch: want at most %d bytes of shared memory on %s, got %d",
                        info.shared_bytes_per_block, info.name, config.shared_bytes));
  }
  return absl::OkStatus();
}

absl::Status Validate(const GemmArgs& args) {
  if (args.type == DType::kF8E4M3) return ValidateScaled(args);
  const bool sixteen_bits = args.type == DType::kBF16 || args.type == DType::kF16;
  if (!sixteen_bits && args.type != DType::kF32) {
    return absl::InvalidArgumentError(
        absl::StrFormat("gemm: want f32|f16|bf16, got %s", Name(args.type).data()));
  }
  if (args.output_type != args.type && args.output_type != DType::kF32) {
    return absl::InvalidArgumentError(absl::StrFormat("gemm: want an output of %s or f32, got %s",
                                                      Name(args.type).data(),
                                                      Name(args.output_type).data()));
  }
  return ValidateStrides(args);
}

}  // namespace quire::kernels::cuda
