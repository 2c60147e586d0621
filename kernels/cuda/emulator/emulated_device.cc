#include "kernels/cuda/emulator/emulated_device.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/cuda/emulator/device_memory.h"
#include "kernels/cuda/emulator/grid.h"
#include "kernels/cuda/emulator/host_gemm.h"
#include "kernels/cuda/emulator/sanitizers.h"
#include "kernels/cuda/emulator/tma.h"

namespace quire::kernels::cuda::emulator {

struct EmulatedDevice::State {
  explicit State(Poison of_fresh_memory) : poison(of_fresh_memory), queue(poison) {}
  ~State() { ShrinkQuarantine(0); }

  // Called before memory of the device or pinned memory is freed.
  void WillBeFreed(const MemoryRange& range);
  // Frees memory of the device.
  void Free(void* data, int64_t bytes, bool sparse);
  // Frees the oldest memory in quarantine until at most `most_bytes` are there.
  void ShrinkQuarantine(int64_t most_bytes);

  const Poison poison;
  DeviceMemory memory;
  WorkQueue queue;
  std::map<const char*, int64_t> pinned;  // the bytes of each address of AllocateHost
  CommandList* recording = nullptr;       // the recording being made, or nullptr
  // True if the recording being made has allocated, freed or waited, which makes it void.
  bool recording_is_void = false;
  // Freed memory, oldest first, whose addresses are not used again yet. It holds poison, and
  // AddressSanitizer reports every access to it.
  std::deque<std::pair<void*, int64_t>> quarantine;
  int64_t quarantine_bytes = 0;
  int64_t allocated_bytes = 0;  // of the device
};

namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kSparseBytes = int64_t{256} << 20;

absl::Status NoMemory(int64_t bytes) {
  return absl::ResourceExhaustedError(absl::StrCat("emulated device: no ", bytes, " bytes"));
}

// Reserves `bytes` of virtual memory. The system provides a page only when the page is first used.
absl::StatusOr<void*> AllocateSparse(int64_t bytes) {
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return NoMemory(bytes);
  return memory;
}

// Returns the most bytes of shared memory that a kernel may ask for. The values are from the
// technical specifications in the CUDA programming guide.
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

// The system takes this much shared memory for each block.
constexpr int64_t kSystemSharedBytes = 1024;
constexpr int64_t kBlocksPerSm = 32;  // the most on 8.0 and 9.0; other chips have fewer

absl::StatusOr<void*> AllocateFilled(int64_t bytes, Poison poison) {
  void* memory = nullptr;
  // The size is not rounded up, so that AddressSanitizer knows the exact end of the memory.
  if (posix_memalign(&memory, kAlignment, static_cast<size_t>(bytes)) != 0) {
    return NoMemory(bytes);
  }
  std::memset(memory, static_cast<int>(poison), static_cast<size_t>(bytes));
  return memory;
}

// Returns true for an empty range too.
bool Has(const std::map<const char*, int64_t>& allocations, const MemoryRange& range) {
  return range.bytes == 0 || IsInside(allocations, range);
}

// A command whose memory is known, but for a kernel.
class RangesCommand : public Command {
 public:
  RangesCommand(const DeviceMemory& memory, std::vector<MemoryRange> on_device)
      : memory_(memory), on_device_(std::move(on_device)) {}

  bool HasMemory() const override {
    return std::ranges::all_of(
        on_device_, [&](const MemoryRange& range) { return memory_.Has(range.data, range.bytes); });
  }
  bool Uses(const MemoryRange& memory) const override {
    return std::ranges::any_of(on_device_,
                               [&](const MemoryRange& range) { return range.Overlaps(memory); });
  }

 private:
  const DeviceMemory& memory_;
  const std::vector<MemoryRange> on_device_;
};

struct Copy {
  char* destination = nullptr;
  const char* source = nullptr;
  int64_t bytes = 0;

  MemoryRange to() const { return {destination, bytes}; }
  MemoryRange from() const { return {source, bytes}; }
};

class CopyCommand : public RangesCommand {
 public:
  CopyCommand(const DeviceMemory& memory, const Copy& copy)
      : CopyCommand(memory, copy, {copy.to(), copy.from()}) {}
  absl::Status Run() const override {
    std::memmove(copy_.destination, copy_.source, static_cast<size_t>(copy_.bytes));
    return absl::OkStatus();
  }

 protected:
  CopyCommand(const DeviceMemory& memory, const Copy& copy, std::vector<MemoryRange> on_device)
      : RangesCommand(memory, std::move(on_device)), copy_(copy) {}

  const Copy copy_;
};

class CopyToDeviceCommand final : public CopyCommand {
 public:
  CopyToDeviceCommand(const DeviceMemory& memory, const Copy& copy)
      : CopyCommand(memory, copy, {copy.to()}) {}
  bool Uses(const MemoryRange& memory) const override {
    return memory.Overlaps(copy_.from()) || CopyCommand::Uses(memory);
  }
  MemoryRange host_source() const override { return copy_.from(); }
};

class CopyToHostCommand final : public CopyCommand {
 public:
  CopyToHostCommand(const DeviceMemory& memory, const Copy& copy)
      : CopyCommand(memory, copy, {copy.from()}) {}
  bool Uses(const MemoryRange& memory) const override {
    return memory.Overlaps(copy_.to()) || CopyCommand::Uses(memory);
  }
  MemoryRange host_target() const override { return copy_.to(); }
};

class FillCommand final : public RangesCommand {
 public:
  FillCommand(const DeviceMemory& memory, void* data, uint8_t value, int64_t bytes)
      : RangesCommand(memory, {{static_cast<const char*>(data), bytes}}),
        data_(data),
        value_(value),
        bytes_(bytes) {}
  absl::Status Run() const override {
    std::memset(data_, value_, static_cast<size_t>(bytes_));
    return absl::OkStatus();
  }

 private:
  void* const data_;
  const uint8_t value_;
  const int64_t bytes_;
};

class KernelCommand final : public Command {
 public:
  KernelCommand(const KernelLaunch& launch, const ExecutionOptions& execution,
                int compute_capability, const DeviceMemory& memory, AccessCounts* counts)
      : launch_(launch),
        params_((launch.params.size() + sizeof(Aligned) - 1) / sizeof(Aligned)),
        execution_(execution),
        compute_capability_(compute_capability),
        memory_(memory),
        counts_(counts) {
    std::memcpy(params_.data(), launch.params.data(), launch.params.size());
    launch_.params = std::as_bytes(std::span(params_)).first(launch.params.size());
  }
  absl::Status Run() const override {
    RETURN_IF_ERROR(CheckAddresses(launch_.params, memory_));
    return Grid(launch_, execution_, compute_capability_, counts_).Run();
  }
  bool may_be_overlapped() const override { return true; }
  absl::StatusOr<std::unique_ptr<Grid>> RunAhead() const override {
    if (!launch_.config.overlaps_previous) return nullptr;
    RETURN_IF_ERROR(CheckAddresses(launch_.params, memory_));
    auto grid = std::make_unique<Grid>(launch_, execution_, compute_capability_, counts_);
    RETURN_IF_ERROR(grid->RunAhead());
    return grid;
  }
  bool Uses(const MemoryRange& memory) const override {
    return HasAddressIn(launch_.params, memory);
  }

 private:
  // A unit of the memory for parameters. Its alignment is that of TensorMap, and no parameter needs
  // a larger alignment.
  struct alignas(128) Aligned {
    std::byte bytes[128];
  };

  KernelLaunch launch_;
  std::vector<Aligned> params_;
  const ExecutionOptions execution_;
  const int compute_capability_;
  const DeviceMemory& memory_;
  AccessCounts* const counts_;  // null: accesses are not counted
};

MemoryRange RangeOf(const void* data, int64_t rows, int64_t cols, int64_t stride, DType dtype) {
  const int64_t elements = rows > 0 && cols > 0 ? (rows - 1) * stride + cols : 0;
  return {static_cast<const char*>(data), elements * SizeOf(dtype)};
}

class GemmCommand final : public RangesCommand {
 public:
  GemmCommand(const DeviceMemory& memory, const GemmArgs& args)
      : RangesCommand(memory, Ranges(args)), args_(args) {}
  absl::Status Run() const override {
    HostGemm(args_);
    return absl::OkStatus();
  }
  bool may_be_overlapped() const override { return true; }

 private:
  // Returns the memory ranges of the matrices a, b and d, and of the scales of a and b if they have
  // any.
  static std::vector<MemoryRange> Ranges(const GemmArgs& args) {
    std::vector<MemoryRange> ranges = {RangeOf(args.a, args.m, args.k, args.lda, args.type),
                                       RangeOf(args.b, args.n, args.k, args.ldb, args.type),
                                       RangeOf(args.d, args.m, args.n, args.ldd, args.output_type)};
    if (args.scales == GemmScales::kNone) return ranges;
    const bool of_blocks = args.scales == GemmScales::kBlocks;
    const int64_t a_count = (of_blocks ? args.k / kScaledGemmBlock : 1) * args.m;
    const int64_t b_count =
        of_blocks ? args.n / kScaledGemmBlock * BlockScaleStride(args.k) : args.n;
    ranges.push_back(RangeOf(args.a_scales, 1, a_count, a_count, DType::kF32));
    ranges.push_back(RangeOf(args.b_scales, 1, b_count, b_count, DType::kF32));
    return ranges;
  }

  const GemmArgs args_;
};

// A mark keeps the time at which it runs.
class MarkCommand final : public Command {
 public:
  absl::Status Run() const override {
    time_ = std::chrono::steady_clock::now();
    return absl::OkStatus();
  }
  bool Uses(const MemoryRange&) const override { return false; }
  std::chrono::steady_clock::time_point time() const { return time_; }

 private:
  mutable std::chrono::steady_clock::time_point time_;
};

struct EmulatedEvent final : Event {
  std::shared_ptr<const MarkCommand> mark;
};

struct EmulatedRecording final : Recording {
  explicit EmulatedRecording(CommandList list)
      : commands(std::make_shared<const CommandList>(std::move(list))) {}
  const std::shared_ptr<const CommandList> commands;
};

absl::Status WantDeviceMemory(std::string_view name) {
  return absl::InvalidArgumentError(
      absl::StrCat(base::ToAbsl(name), ": want memory of the device, all of it in one allocation"));
}

absl::Status VoidRecording() {
  return absl::FailedPreconditionError("a recording neither allocates, frees nor waits");
}

constexpr int64_t kMostQuarantineBytes = int64_t{16} << 20;

}  // namespace

void EmulatedDevice::State::WillBeFreed(const MemoryRange& range) {
  queue.WillBeFreed(range);
  if (recording != nullptr) recording_is_void = true;
}

void EmulatedDevice::State::Free(void* data, int64_t bytes, bool sparse) {
  WillBeFreed({static_cast<const char*>(data), bytes});
  memory.Remove(data);
  allocated_bytes -= bytes;
  if (sparse) {
    munmap(data, static_cast<size_t>(bytes));
    return;
  }
  std::memset(data, static_cast<int>(poison), static_cast<size_t>(bytes));
  AsanPoison(data, static_cast<size_t>(bytes));
  quarantine.emplace_back(data, bytes);
  quarantine_bytes += bytes;
  ShrinkQuarantine(kMostQuarantineBytes);
}

void EmulatedDevice::State::ShrinkQuarantine(int64_t most_bytes) {
  while (quarantine_bytes > most_bytes) {
    const auto [data, bytes] = quarantine.front();
    quarantine.pop_front();
    quarantine_bytes -= bytes;
    AsanUnpoison(data, static_cast<size_t>(bytes));
    std::free(data);
  }
}

EmulatedDevice::EmulatedDevice(const EmulatorOptions& options)
    : execution_(options.execution),
      counts_accesses_(options.counts_accesses),
      state_(std::make_shared<State>(options.execution.poison)) {
  info_.name = "emulated device";
  info_.pci_bus_id = "0000:17:00.0";  // where the tests' library in the place of NVML has a GPU
  info_.compute_capability = options.compute_capability;
  info_.num_sms = options.num_sms;
  info_.shared_bytes_per_block = SharedBytesPerBlock(options.compute_capability);
  info_.shared_bytes_per_sm = info_.shared_bytes_per_block + kSystemSharedBytes;
  info_.threads_per_sm = options.compute_capability % 10 == 0 ? 2048 : 1536;
  info_.memory_bytes = int64_t{1} << 30;
}

absl::Status EmulatedDevice::CheckMayWait() const {
  if (state_->recording == nullptr) return fault_;
  state_->recording_is_void = true;
  return VoidRecording();
}

absl::Status EmulatedDevice::CheckMayCopy(std::string_view name, const MemoryRange& host) const {
  if (state_->recording == nullptr || Has(state_->pinned, host)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(base::ToAbsl(name), ": want memory of AllocateHost in a recording"));
}

absl::Status EmulatedDevice::Enqueue(std::shared_ptr<const Command> command) {
  RETURN_IF_ERROR(fault_);
  if (state_->recording != nullptr) {
    state_->recording->push_back(std::move(command));
  } else {
    state_->queue.Push(std::move(command));
  }
  return absl::OkStatus();
}

int64_t EmulatedDevice::available_bytes() const {
  return std::max<int64_t>(0, info_.memory_bytes - state_->allocated_bytes);
}

absl::StatusOr<DeviceBuffer> EmulatedDevice::Allocate(int64_t bytes) {
  RETURN_IF_ERROR(CheckMayWait());
  if (bytes <= 0) return DeviceBuffer();
  const bool sparse = bytes >= kSparseBytes;
  ASSIGN_OR_RETURN(void* const memory,
                   sparse ? AllocateSparse(bytes) : AllocateFilled(bytes, execution_.poison));
  state_->memory.Add(memory, bytes, sparse);
  state_->allocated_bytes += bytes;
  return DeviceBuffer(memory, bytes, [state = state_, bytes, sparse](void* data) {
    state->Free(data, bytes, sparse);
  });
}

absl::StatusOr<DeviceBuffer> EmulatedDevice::AllocateHost(int64_t bytes) {
  RETURN_IF_ERROR(CheckMayWait());
  if (bytes <= 0) return DeviceBuffer();
  ASSIGN_OR_RETURN(void* const memory, AllocateFilled(bytes, execution_.poison));
  state_->pinned[static_cast<const char*>(memory)] = bytes;
  return DeviceBuffer(memory, bytes, [state = state_, bytes](void* data) {
    state->WillBeFreed({static_cast<const char*>(data), bytes});
    state->pinned.erase(static_cast<const char*>(data));
    std::free(data);
  });
}

absl::Status EmulatedDevice::CopyToDevice(void* destination, const void* source, int64_t bytes) {
  if (bytes <= 0) return absl::OkStatus();
  if (!state_->memory.Has(destination, bytes)) return WantDeviceMemory("destination");
  RETURN_IF_ERROR(CheckMayCopy("source", {static_cast<const char*>(source), bytes}));
  return Enqueue(std::make_shared<CopyToDeviceCommand>(
      state_->memory,
      Copy{static_cast<char*>(destination), static_cast<const char*>(source), bytes}));
}

absl::Status EmulatedDevice::CopyToHost(void* destination, const void* source, int64_t bytes) {
  if (bytes <= 0) return absl::OkStatus();
  if (!state_->memory.Has(source, bytes)) return WantDeviceMemory("source");
  RETURN_IF_ERROR(CheckMayCopy("destination", {static_cast<const char*>(destination), bytes}));
  return Enqueue(std::make_shared<CopyToHostCommand>(
      state_->memory,
      Copy{static_cast<char*>(destination), static_cast<const char*>(source), bytes}));
}

absl::Status EmulatedDevice::CopyOnDevice(void* destination, const void* source, int64_t bytes) {
  if (bytes <= 0) return absl::OkStatus();
  if (!state_->memory.Has(destination, bytes)) return WantDeviceMemory("destination");
  if (!state_->memory.Has(source, bytes)) return WantDeviceMemory("source");
  return Enqueue(std::make_shared<CopyCommand>(
      state_->memory,
      Copy{static_cast<char*>(destination), static_cast<const char*>(source), bytes}));
}

absl::Status EmulatedDevice::Fill(void* destination, uint8_t value, int64_t bytes) {
  if (bytes <= 0) return absl::OkStatus();
  if (!state_->memory.Has(destination, bytes)) return WantDeviceMemory("destination");
  return Enqueue(std::make_shared<FillCommand>(state_->memory, destination, value, bytes));
}

absl::StatusOr<int> EmulatedDevice::BlocksPerSm(const void*, const LaunchConfig& config) {
  RETURN_IF_ERROR(Validate(config, info_));
  const int64_t threads = int64_t{config.block.x} * config.block.y * config.block.z;
  return static_cast<int>(
      std::min({kBlocksPerSm, info_.threads_per_sm / threads,
                info_.shared_bytes_per_sm / (config.shared_bytes + kSystemSharedBytes)}));
}

absl::Status EmulatedDevice::LaunchKernel(const KernelLaunch& launch) {
  RETURN_IF_ERROR(Validate(launch.config, info_));
  AccessCounts* const counts = counts_accesses_ ? &access_counts_[launch.kernel] : nullptr;
  return Enqueue(std::make_shared<KernelCommand>(launch, execution_, info_.compute_capability,
                                                 state_->memory, counts));
}

absl::Status EmulatedDevice::Gemm(const GemmArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  auto command = std::make_shared<GemmCommand>(state_->memory, args);
  if (!command->HasMemory()) return WantDeviceMemory("gemm");
  return Enqueue(std::move(command));
}

absl::StatusOr<std::unique_ptr<Event>> EmulatedDevice::CreateEvent() {
  RETURN_IF_ERROR(fault_);
  return std::make_unique<EmulatedEvent>();
}

absl::Status EmulatedDevice::Mark(Event& event) {
  RETURN_IF_ERROR(CheckMayWait());
  const auto mark = std::make_shared<const MarkCommand>();
  static_cast<EmulatedEvent&>(event).mark = mark;
  return Enqueue(mark);
}

absl::Status EmulatedDevice::Wait(const Event& event) {
  const Command* const mark = static_cast<const EmulatedEvent&>(event).mark.get();
  if (mark == nullptr) return absl::FailedPreconditionError("the event has no mark to wait for");
  return RunQueue(mark);
}

absl::StatusOr<std::unique_ptr<Recording>> EmulatedDevice::Record(
    absl::FunctionRef<absl::Status()> enqueue) {
  RETURN_IF_ERROR(CheckMayWait());
  CommandList commands;
  state_->recording = &commands;
  state_->recording_is_void = false;
  const absl::Status status = enqueue();
  state_->recording = nullptr;
  RETURN_IF_ERROR(status);
  if (state_->recording_is_void) return VoidRecording();
  return std::make_unique<EmulatedRecording>(std::move(commands));
}

absl::Status EmulatedDevice::Replay(const Recording& recording) {
  RETURN_IF_ERROR(CheckMayWait());
  const auto& commands = static_cast<const EmulatedRecording&>(recording).commands;
  for (const auto& command : *commands) {
    const bool is_alive = command->HasMemory() && Has(state_->pinned, command->host_source()) &&
                          Has(state_->pinned, command->host_target());
    if (is_alive) continue;
    fault_ = absl::InternalError("a recording uses memory that was freed");
    return fault_;
  }
  state_->queue.PushAll(commands);
  return absl::OkStatus();
}

absl::StatusOr<double> EmulatedDevice::SecondsBetween(const Event& begin, const Event& end) {
  RETURN_IF_ERROR(fault_);
  const auto time = [](const Event& event) {
    return static_cast<const EmulatedEvent&>(event).mark->time();
  };
  return std::chrono::duration<double>(time(end) - time(begin)).count();
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

absl::Status EmulatedDevice::RunQueue(const Command* last) {
  RETURN_IF_ERROR(CheckMayWait());
  const DeviceMemory::Work work(state_->memory);
  fault_ = state_->queue.Run(last);
  return fault_;
}

absl::Status EmulatedDevice::Synchronize() { return RunQueue(nullptr); }

}  // namespace quire::kernels::cuda::emulator
