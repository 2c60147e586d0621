#include "kernels/cuda/emulator/emulated_device.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include <sys/mman.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "kernels/cuda/emulator/execution.h"
#include "kernels/cuda/emulator/host_gemm.h"
#include "kernels/cuda/emulator/sanitizers.h"
#include "kernels/cuda/emulator/tma.h"

namespace quire::kernels::cuda::emulator {

// The memory ranges that only work of the device may touch.
class DeviceMemory {
 public:
  void Add(void* data, size_t bytes) {
    ranges_[data] = bytes;
    AsanPoison(data, bytes);
  }
  void Remove(void* data) {
    AsanUnpoison(data, ranges_.at(data));
    ranges_.erase(data);
  }

  // While one lives, the device works and may touch its memory.
  class Work {
   public:
    explicit Work(const DeviceMemory& memory) : memory_(memory) {
      for (const auto& [data, bytes] : memory_.ranges_) AsanUnpoison(data, bytes);
    }
    ~Work() {
      for (const auto& [data, bytes] : memory_.ranges_) AsanPoison(data, bytes);
    }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    const DeviceMemory& memory_;
  };

 private:
  std::map<void*, size_t> ranges_;
};

namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kSparseBytes = int64_t{256} << 20;

absl::StatusOr<DeviceBuffer> AllocateSparse(int64_t bytes) {
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("emulated device: no ", bytes, " bytes"));
  }
  return DeviceBuffer(memory, bytes,
                      [bytes](void* data) { munmap(data, static_cast<size_t>(bytes)); });
}

// The most shared memory that a kernel may ask for (CUDA programming guide, technical
// specifications).
int64_t SharedBytesPerBlock(int compute_capability) {
  switch (compute_capability) {
    case 75:
      return 64 << 10;
    case 80:
    case 87:
      return 163 << 10;
    case 90:
    case 100:
      return 227 << 10;
    default:  // 8.6, 8.9, 12.0
      return 99 << 10;
  }
}

absl::StatusOr<void*> AllocateFilled(int64_t bytes, Poison poison) {
  void* memory = nullptr;
  // The size is not rounded up, so that AddressSanitizer knows the end.
  if (posix_memalign(&memory, kAlignment, static_cast<size_t>(bytes)) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("emulated device: no ", bytes, " bytes"));
  }
  std::memset(memory, static_cast<int>(poison), static_cast<size_t>(bytes));
  return memory;
}

absl::Status Move(void* destination, const void* source, int64_t bytes) {
  if (bytes > 0) std::memmove(destination, source, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

struct EmulatedRecording final : Recording {
  explicit EmulatedRecording(std::function<absl::Status()> work) : enqueue(std::move(work)) {}
  const std::function<absl::Status()> enqueue;
};

}  // namespace

EmulatedDevice::EmulatedDevice(const EmulatorOptions& options)
    : execution_(options.execution), memory_(std::make_shared<DeviceMemory>()) {
  info_.name = "emulated device";
  info_.compute_capability = options.compute_capability;
  info_.num_sms = options.num_sms;
  info_.shared_bytes_per_block = SharedBytesPerBlock(options.compute_capability);
  info_.shared_bytes_per_sm = info_.shared_bytes_per_block + 1024;
  info_.memory_bytes = int64_t{1} << 30;
}

absl::StatusOr<DeviceBuffer> EmulatedDevice::Allocate(int64_t bytes) {
  if (bytes <= 0) return DeviceBuffer();
  if (bytes >= kSparseBytes) return AllocateSparse(bytes);
  ASSIGN_OR_RETURN(void* const memory, AllocateFilled(bytes, execution_.poison));
  memory_->Add(memory, static_cast<size_t>(bytes));
  return DeviceBuffer(memory, bytes, [memory = memory_](void* data) {
    memory->Remove(data);
    std::free(data);
  });
}

absl::StatusOr<DeviceBuffer> EmulatedDevice::AllocateHost(int64_t bytes) {
  if (bytes <= 0) return DeviceBuffer();
  ASSIGN_OR_RETURN(void* const memory, AllocateFilled(bytes, execution_.poison));
  return DeviceBuffer(memory, bytes, [](void* data) { std::free(data); });
}

absl::Status EmulatedDevice::CopyToDevice(void* destination, const void* source, int64_t bytes) {
  const DeviceMemory::Work work(*memory_);
  return Move(destination, source, bytes);
}

absl::Status EmulatedDevice::CopyToHost(void* destination, const void* source, int64_t bytes) {
  const DeviceMemory::Work work(*memory_);
  return Move(destination, source, bytes);
}

absl::Status EmulatedDevice::CopyOnDevice(void* destination, const void* source, int64_t bytes) {
  const DeviceMemory::Work work(*memory_);
  return Move(destination, source, bytes);
}

absl::Status EmulatedDevice::Fill(void* destination, uint8_t value, int64_t bytes) {
  const DeviceMemory::Work work(*memory_);
  if (bytes > 0) std::memset(destination, value, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status EmulatedDevice::LaunchKernel(const KernelLaunch& launch) {
  RETURN_IF_ERROR(Validate(launch.config, info_));
  if (!fault_.ok()) return absl::OkStatus();
  const DeviceMemory::Work work(*memory_);
  fault_ = RunGrid(
      launch.config, [&launch] { launch.call(launch.kernel, launch.params); }, execution_,
      info_.compute_capability);
  return absl::OkStatus();
}

absl::Status EmulatedDevice::Gemm(const GemmArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  const DeviceMemory::Work work(*memory_);
  if (fault_.ok()) HostGemm(args);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Recording>> EmulatedDevice::Record(
    std::function<absl::Status()> enqueue) {
  return std::make_unique<EmulatedRecording>(std::move(enqueue));
}

absl::Status EmulatedDevice::Replay(const Recording& recording) {
  return static_cast<const EmulatedRecording&>(recording).enqueue();
}

absl::StatusOr<double> EmulatedDevice::SecondsOf(absl::FunctionRef<absl::Status()> enqueue) {
  const auto begin = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(enqueue());
  RETURN_IF_ERROR(Synchronize());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

absl::StatusOr<TensorMap> EmulatedDevice::MakeTensorMap(const TensorMapSpec& spec) {
  RETURN_IF_ERROR(Validate(spec));
  if (info_.compute_capability < 90) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: TMA needs compute capability 9.0, and this chip has %d.%d", info_.name,
                        info_.compute_capability / 10, info_.compute_capability % 10));
  }
  return EncodeTensorMap(spec);
}

absl::Status EmulatedDevice::Synchronize() { return std::exchange(fault_, absl::OkStatus()); }

}  // namespace quire::kernels::cuda::emulator
