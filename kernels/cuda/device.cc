#include "kernels/cuda/device.h"

#include "absl/strings/str_format.h"

#include "base/status_macros.h"

namespace quire::kernels::cuda {

namespace {

constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kMaxGridX = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxGridYz = 65535;

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
  if (args.m < 0 || args.n < 0 || args.k < 0 || args.lda < args.k || args.ldb < args.k ||
      args.ldd < args.n) {
    return absl::InvalidArgumentError(
        absl::StrFormat("gemm: want rows at least as far apart as they are long, got m %d, n %d, "
                        "k %d, lda %d, ldb %d, ldd %d",
                        args.m, args.n, args.k, args.lda, args.ldb, args.ldd));
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels::cuda
