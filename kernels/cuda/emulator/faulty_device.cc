#include "kernels/cuda/emulator/faulty_device.h"

#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"

namespace quire::kernels::cuda::emulator {

absl::StatusOr<DeviceBuffer> FaultyDevice::Allocate(int64_t bytes) {
  if (bytes > available_bytes()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("allocating ", bytes, " bytes: out of memory"));
  }
  return EmulatedDevice::Allocate(bytes);
}

absl::Status FaultyDevice::CopyToDevice(void* destination, const void* source, int64_t bytes) {
  RETURN_IF_ERROR(broken_);
  return EmulatedDevice::CopyToDevice(destination, source, bytes);
}

absl::Status FaultyDevice::Gemm(const GemmArgs& args) {
  if (args.type == DType::kF8E4M3 && Exists(".refusal")) {
    return absl::UnimplementedError("emulated device: no algorithm");
  }
  return EmulatedDevice::Gemm(args);
}

absl::Status FaultyDevice::Wait(const Event& event) {
  RETURN_IF_ERROR(Break());
  return EmulatedDevice::Wait(event);
}

absl::Status FaultyDevice::Synchronize() {
  RETURN_IF_ERROR(Break());
  return EmulatedDevice::Synchronize();
}

bool FaultyDevice::Exists(const char* kind) const {
  std::error_code error;
  return !path_.empty() && std::filesystem::exists(path_.string() + kind, error);
}

// Returns the fault, if the device has one.
absl::Status FaultyDevice::Break() {
  if (!broken_.ok()) return broken_;
  // Another process makes and removes the file, so only polling sees the change.
  while (Exists(".hang")) absl::SleepFor(absl::Milliseconds(10));
  if (Exists(".fault")) {
    broken_ = absl::InternalError("emulated device: an illegal memory access was encountered");
  }
  return broken_;
}

}  // namespace quire::kernels::cuda::emulator
