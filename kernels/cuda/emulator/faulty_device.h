#pragma once

// An emulated device that a test can break while a server runs on it.

#include <filesystem>
#include <utility>

#include "kernels/cuda/emulator/emulated_device.h"

namespace quire::kernels::cuda::emulator {

// The environment variable that names the files of a FaultyDevice.
inline constexpr char kFaultVariable[] = "EMULATED_DEVICE_FAULT";

// Whenever the host waits for the device, the device looks for two files. Once PATH.fault exists,
// the device has a fault that stays, as after an illegal address in a kernel. While PATH.hang
// exists, the wait does not return. While PATH.refusal exists, the device has no algorithm for
// products in e4m3.
class FaultyDevice final : public EmulatedDevice {
 public:
  // An empty path: the device never breaks.
  explicit FaultyDevice(std::filesystem::path path) : path_(std::move(path)) {}

  // Gives no more memory than the device has.
  absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) override;
  absl::Status CopyToDevice(void* destination, const void* source, int64_t bytes) override;
  absl::Status Gemm(const GemmArgs& args) override;
  absl::Status Wait(const Event& event) override;
  absl::Status Synchronize() override;

 private:
  bool Exists(const char* kind) const;  // the file of that kind
  absl::Status Break();

  const std::filesystem::path path_;
  absl::Status broken_;
};

}  // namespace quire::kernels::cuda::emulator
