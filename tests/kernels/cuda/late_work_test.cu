// Tests that work of the emulated device runs late: at the wait or the event that needs it. So
// tests of host code find a missing wait, and memory that is freed or overwritten too early.

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/primitives.cuh"
#include "kernels/cuda/emulator/emulated_device.h"
#include "tests/kernels/cuda/device_testing.h"

namespace quire::testing {
namespace {

using namespace kernels::cuda;
using emulator::EmulatedDevice;
using ::testing::HasSubstr;

struct Params {
  float* out;
  int variant;
};

int runs_counted = 0;  // host memory, which only an emulated kernel reaches
__global__ void CountsItsRuns(const __grid_constant__ Params) { ++runs_counted; }
__global__ void StoresItsVariant(const __grid_constant__ Params p) {
  p.out[0] = static_cast<float>(p.variant);
}

class LateWorkTest : public ::testing::Test {
 protected:
  LateWorkTest() { EXPECT_TRUE(device_.Fill(data(), 1, kBytes).ok() && Wait() == ""); }

  // Waits for all work and returns the message of a fault, or an empty string.
  std::string Wait() { return std::string(device_.Synchronize().message()); }
  absl::Status Store(int variant) {
    return Launch(device_, {}, &StoresItsVariant, {static_cast<float*>(data()), variant});
  }
  float Stored() {
    float value = 0.0f;
    EXPECT_TRUE(device_.CopyToHost(&value, data(), sizeof(value)).ok());
    EXPECT_EQ(Wait(), "");
    return value;
  }
  void* data() { return memory_.data(); }

  static constexpr int64_t kBytes = 16;
  EmulatedDevice device_;
  kernels::DeviceBuffer memory_ = *device_.Allocate(kBytes);
};

TEST_F(LateWorkTest, RunsWhenSomebodyWaits) {
  runs_counted = 0;
  ASSERT_TRUE(Launch(device_, {}, &CountsItsRuns, Params{}).ok());
  EXPECT_EQ(runs_counted, 0);
  EXPECT_EQ(Wait(), "");
  EXPECT_EQ(runs_counted, 1);
  EXPECT_EQ(Wait(), "");
  EXPECT_EQ(runs_counted, 1);
}

TEST_F(LateWorkTest, TheTargetOfACopyHoldsPoisonUntilThen) {
  const auto target = std::make_unique<std::array<unsigned char, kBytes>>();
  target->fill(7);
  ASSERT_TRUE(device_.CopyToHost(target->data(), data(), kBytes).ok());
  if (emulator::kAddressSanitizer) {
    EXPECT_TRUE(emulator::AsanIsPoisoned(target->data()));
    EXPECT_TRUE(emulator::AsanIsPoisoned(target->data() + kBytes - 1));
  } else {
    EXPECT_THAT(*target, ::testing::Each(static_cast<unsigned char>(emulator::Poison::kNaN)));
  }
  EXPECT_EQ(Wait(), "");
  EXPECT_THAT(*target, ::testing::Each(1));
}

TEST_F(LateWorkTest, TheSourceOfACopyMustNotChangeUntilThen) {
  int source = 1;
  ASSERT_TRUE(device_.CopyToDevice(data(), &source, sizeof(source)).ok());
  source = 2;
  EXPECT_THAT(Wait(), HasSubstr("the source of a copy was changed before the copy had run"));
}

TEST_F(LateWorkTest, TheTargetOfACopyMustNotChangeUntilThen) {
  const auto target = std::make_unique<std::array<unsigned char, kBytes>>();
  ASSERT_TRUE(device_.CopyToHost(target->data(), data(), kBytes).ok());
  if (emulator::kAddressSanitizer) {
    EXPECT_DEATH((*target)[0] = 2, "use-after-poison");
  } else {
    (*target)[0] = 2;
    EXPECT_THAT(Wait(), HasSubstr("the target of a copy was changed before the copy had run"));
  }
}

// Copies to and from the same host memory may be enqueued one after another, because they run in
// order.
TEST_F(LateWorkTest, ACopyMayDependOnOneBeforeIt) {
  const kernels::DeviceBuffer other = *device_.Allocate(kBytes);
  auto staging = std::make_unique<std::array<unsigned char, kBytes>>();
  staging->fill(5);
  ASSERT_TRUE(device_.CopyToDevice(other.data(), staging->data(), kBytes).ok());
  ASSERT_TRUE(device_.CopyToHost(staging->data(), data(), kBytes).ok());
  ASSERT_TRUE(device_.CopyToDevice(data(), staging->data(), kBytes).ok());
  ASSERT_TRUE(device_.CopyToHost(staging->data(), other.data(), kBytes).ok());
  EXPECT_EQ(Wait(), "");
  EXPECT_THAT(*staging, ::testing::Each(5));
  ASSERT_TRUE(device_.CopyToHost(staging->data(), data(), kBytes).ok());
  EXPECT_EQ(Wait(), "");
  EXPECT_THAT(*staging, ::testing::Each(1));
}

// Enqueues the product of the number at `a` with itself.
absl::Status Square(Device& device, void* a, void* out) {
  return device.Gemm({.d = out,
                      .a = a,
                      .b = a,
                      .m = 1,
                      .n = 1,
                      .k = 1,
                      .lda = 1,
                      .ldb = 1,
                      .ldd = 1,
                      .type = kernels::DType::kF32,
                      .output_type = kernels::DType::kF32});
}

TEST_F(LateWorkTest, MemoryMustNotBeFreedUntilThen) {
  const std::string fault = "memory was freed before work that uses it had run";
  const auto fault_of = [&](const std::function<absl::Status(Device&, void* a, void* b)>& work,
                            bool frees_a) {
    EmulatedDevice device;
    kernels::DeviceBuffer a = *device.Allocate(64), b = *device.Allocate(64);
    EXPECT_TRUE(work(device, a.data(), b.data()).ok());
    (frees_a ? a : b) = kernels::DeviceBuffer();
    return std::string(device.Synchronize().message());
  };
  const auto fill = [](Device& device, void* a, void*) { return device.Fill(a, 0, 64); };
  const auto copy = [](Device& device, void* a, void* b) { return device.CopyOnDevice(a, b, 64); };
  const auto kernel = [](Device& device, void* a, void*) {
    return Launch(device, {}, &StoresItsVariant, {static_cast<float*>(a), 1});
  };
  EXPECT_EQ(fault_of(fill, true), fault);
  EXPECT_EQ(fault_of(fill, false), "");
  EXPECT_EQ(fault_of(copy, true), fault);
  EXPECT_EQ(fault_of(copy, false), fault);
  EXPECT_EQ(fault_of(kernel, true), fault);
  EXPECT_EQ(fault_of(kernel, false), "");
  EXPECT_EQ(fault_of(&Square, true), fault);
  EXPECT_EQ(fault_of(&Square, false), fault);

  kernels::DeviceBuffer pinned = *device_.AllocateHost(kBytes);
  ASSERT_TRUE(device_.CopyToHost(pinned.data(), data(), kBytes).ok());
  pinned = kernels::DeviceBuffer();
  EXPECT_EQ(Wait(), fault);
}

TEST_F(LateWorkTest, NothingRunsAfterAFault) {
  float host = 0.0f;
  runs_counted = 0;
  const auto recording = device_.Record([&] { return Store(1); });
  ASSERT_TRUE(recording.ok());
  ASSERT_TRUE(device_.CopyToDevice(data(), &host, sizeof(host)).ok());
  host = 1.0f;  // before the copy has run
  ASSERT_TRUE(Launch(device_, {}, &CountsItsRuns, Params{}).ok());
  const std::string fault = Wait();
  EXPECT_NE(fault, "");
  EXPECT_EQ(runs_counted, 0);
  for (const absl::Status& status :
       {device_.Synchronize(), Store(1), device_.Fill(data(), 0, 1), device_.Replay(**recording),
        device_.CopyToHost(&host, data(), 4), device_.CopyToDevice(data(), &host, 4),
        device_.Allocate(1).status(), device_.AllocateHost(1).status()}) {
    EXPECT_EQ(status.message(), fault);
  }
}

TEST_F(LateWorkTest, ItsMemoryIsNotTheHosts) {
  float host = 0.0f;
  const auto on_heap = std::make_unique<float>();
  for (float* const pointer : {&host, on_heap.get()}) {
    if (!kClearsPadding) break;  // the parameters of kernels are not checked
    EmulatedDevice device;
    ASSERT_TRUE(Launch(device, {}, &StoresItsVariant, {pointer, 1}).ok());
    EXPECT_THAT(std::string(device.Synchronize().message()),
                HasSubstr("which is not memory of the device"));
  }
  EXPECT_EQ(device_.Fill(&host, 0, 4).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device_.CopyOnDevice(data(), &host, 4).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device_.CopyOnDevice(&host, data(), 4).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device_.CopyToHost(&host, on_heap.get(), 4).code(), absl::StatusCode::kInvalidArgument);
  // A fill may reach the end of the memory, but not one byte past it.
  EXPECT_TRUE(device_.Fill(data(), 1, kBytes).ok());
  EXPECT_EQ(device_.Fill(data(), 1, kBytes + 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Wait(), "");
}

#if defined(QUIRE_CLEARS_PADDING)  // otherwise the parameters of kernels are not checked

TEST_F(LateWorkTest, AStaleAddressIsAFault) {
  constexpr int64_t kSparse = int64_t{256} << 20;
  for (const int64_t bytes : {int64_t{64}, int64_t{8} << 20, int64_t{32} << 20, kSparse}) {
    EmulatedDevice device;
    kernels::DeviceBuffer memory = *device.Allocate(bytes);
    const auto recording = *device.Record([&] {
      // The address of the last float.
      auto* const last = static_cast<float*>(memory.data()) + bytes / 4 - 1;
      return Launch(device, {}, &StoresItsVariant, {last, 1});
    });
    ASSERT_TRUE(device.Replay(*recording).ok());
    EXPECT_TRUE(device.Synchronize().ok()) << bytes;
    memory = kernels::DeviceBuffer();
    // Memory below the size of the quarantine does not come back at the same addresses.
    if (bytes <= int64_t{8} << 20) memory = *device.Allocate(bytes);
    ASSERT_TRUE(device.Replay(*recording).ok());
    EXPECT_THAT(std::string(device.Synchronize().message()),
                HasSubstr("which is memory of the device that was freed"))
        << bytes;
  }
}

TEST_F(LateWorkTest, MemoryOfAnotherDeviceIsAFault) {
  EmulatedDevice other;
  const kernels::DeviceBuffer foreign = *other.Allocate(4);
  ASSERT_TRUE(
      Launch(device_, {}, &StoresItsVariant, {static_cast<float*>(foreign.data()), 1}).ok());
  EXPECT_THAT(Wait(), HasSubstr("which is not memory of the device"));
}

#endif

// --- Recordings

TEST_F(LateWorkTest, AWaitForAnEventRunsNothingAfterItsMark) {
  const auto event = *device_.CreateEvent();
  EXPECT_EQ(device_.Wait(*event).code(), absl::StatusCode::kFailedPrecondition) << "it has no mark";
  runs_counted = 0;
  ASSERT_TRUE(Launch(device_, {}, &CountsItsRuns, Params{}).ok());
  ASSERT_TRUE(device_.Mark(*event).ok());
  ASSERT_TRUE(Launch(device_, {}, &CountsItsRuns, Params{}).ok());
  ASSERT_TRUE(device_.Wait(*event).ok());
  EXPECT_EQ(runs_counted, 1);
  ASSERT_TRUE(device_.Wait(*event).ok());
  EXPECT_EQ(runs_counted, 1) << "the mark was passed before";
  EXPECT_EQ(Wait(), "");
  EXPECT_EQ(runs_counted, 2);
}

TEST_F(LateWorkTest, AWaitForAnEventReportsAFaultBeforeItsMark) {
  const auto event = *device_.CreateEvent();
  int source = 1;
  ASSERT_TRUE(device_.CopyToDevice(data(), &source, sizeof(source)).ok());
  ASSERT_TRUE(device_.Mark(*event).ok());
  source = 2;
  EXPECT_THAT(std::string(device_.Wait(*event).message()), HasSubstr("the source of a copy"));
  EXPECT_THAT(Wait(), HasSubstr("the source of a copy")) << "the first fault stays";
}

TEST_F(LateWorkTest, ARecordingKeepsItsParameters) {
  int variant = 1;
  const auto recording = device_.Record([&] { return Store(variant); });
  ASSERT_TRUE(recording.ok()) << recording.status();
  variant = 2;
  ASSERT_TRUE(device_.Replay(**recording).ok());
  EXPECT_EQ(Stored(), 1.0f);
}

TEST_F(LateWorkTest, ARecordingReadsHostMemoryAtEachReplay) {
  const kernels::DeviceBuffer pinned = *device_.AllocateHost(sizeof(float));
  float& source = *static_cast<float*>(pinned.data());
  source = 1.0f;
  const auto recording =
      device_.Record([&] { return device_.CopyToDevice(data(), &source, sizeof(source)); });
  for (const float value : {2.0f, 3.0f}) {
    source = value;
    ASSERT_TRUE(device_.Replay(**recording).ok());
    EXPECT_EQ(Stored(), value);
  }
  ASSERT_TRUE(device_.Replay(**recording).ok());
  source = 4.0f;
  EXPECT_THAT(Wait(), HasSubstr("the source of a copy was changed"));
}

TEST_F(LateWorkTest, ARecordingNeitherAllocatesNorWaits) {
  for (const auto& work : std::initializer_list<std::function<absl::Status()>>{
           [&] { return device_.Allocate(1).status(); },
           [&] { return device_.AllocateHost(1).status(); }, [&] { return device_.Synchronize(); },
           [&] { return device_.Mark(**device_.CreateEvent()); },
           [&] { return device_.Record([] { return absl::OkStatus(); }).status(); }}) {
    EXPECT_EQ(device_.Record(work).status().code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(Wait(), "");
}

TEST_F(LateWorkTest, ARecordingThatAllocatesFreesOrWaitsIsVoidWhateverItReturns) {
  kernels::DeviceBuffer memory = *device_.Allocate(1), pinned = *device_.AllocateHost(1);
  for (const auto& work : std::initializer_list<std::function<void()>>{
           [&] { (void)device_.Allocate(1); }, [&] { (void)device_.AllocateHost(1); },
           [&] { (void)device_.Synchronize(); }, [&] { memory = kernels::DeviceBuffer(); },
           [&] { pinned = kernels::DeviceBuffer(); }}) {
    const auto enqueue = [&] {
      work();
      return Store(1);
    };
    EXPECT_EQ(device_.Record(enqueue).status().code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_TRUE(device_.Record([&] { return Store(1); }).ok());
  EXPECT_EQ(Wait(), "");
}

TEST_F(LateWorkTest, ARecordingCopiesToAndFromPinnedMemoryAlone) {
  const kernels::DeviceBuffer pinned = *device_.AllocateHost(kBytes);
  std::array<char, kBytes> host = {};
  const auto records = [&](void* memory, int64_t bytes) {
    const auto to_host = device_.Record([&] { return device_.CopyToHost(memory, data(), bytes); });
    const auto to_device =
        device_.Record([&] { return device_.CopyToDevice(data(), memory, bytes); });
    EXPECT_EQ(to_host.ok(), to_device.ok());
    return to_host.ok();
  };
  EXPECT_TRUE(records(pinned.data(), kBytes));
  EXPECT_FALSE(records(static_cast<char*>(pinned.data()) + 1, kBytes));
  EXPECT_FALSE(records(host.data(), kBytes));
  EXPECT_FALSE(records(data(), kBytes));
}

TEST_F(LateWorkTest, AReplayOverFreedMemoryIsAFault) {
  using Work = std::function<absl::Status(Device&, void* freed, void* other, void* pinned)>;
  const auto fault_of = [](const Work& work, bool frees_pinned = false) {
    EmulatedDevice device;
    kernels::DeviceBuffer a = *device.Allocate(64), b = *device.Allocate(64),
                          pinned = *device.AllocateHost(64);
    EXPECT_TRUE(device.Fill(a.data(), 0, 64).ok() && device.Fill(b.data(), 0, 64).ok());
    std::memset(pinned.data(), 0, 64);
    const auto recording =
        *device.Record([&] { return work(device, a.data(), b.data(), pinned.data()); });
    EXPECT_TRUE(device.Replay(*recording).ok() && device.Synchronize().ok());
    (frees_pinned ? pinned : a) = kernels::DeviceBuffer();
    const std::string fault(device.Replay(*recording).message());
    EXPECT_EQ(device.Synchronize().message(), fault);
    return fault;
  };
  const std::string fault = "a recording uses memory that was freed";
  const Work to_device = [](Device& device, void* a, void*, void* pinned) {
    return device.CopyToDevice(a, pinned, 64);
  };
  const Work to_host = [](Device& device, void* a, void*, void* pinned) {
    return device.CopyToHost(pinned, a, 64);
  };
  const Work fill = [](Device& device, void* a, void*, void*) { return device.Fill(a, 0, 64); };
  const Work copy = [](Device& device, void* a, void* b, void*) {
    return device.CopyOnDevice(b, a, 64);
  };
  const Work copy_back = [](Device& device, void* a, void* b, void*) {
    return device.CopyOnDevice(a, b, 64);
  };
  const Work square = [](Device& device, void* a, void* b, void*) { return Square(device, a, b); };
  const Work square_back = [](Device& device, void* a, void* b, void*) {
    return Square(device, b, a);
  };
  for (const Work& work : {to_device, to_host, fill, copy, copy_back, square, square_back}) {
    EXPECT_EQ(fault_of(work), fault);
  }
  EXPECT_EQ(fault_of(to_device, /*frees_pinned=*/true), fault);
  EXPECT_EQ(fault_of(to_host, /*frees_pinned=*/true), fault);
  EXPECT_EQ(fault_of([](Device& device, void*, void* b, void*) { return device.Fill(b, 0, 64); }),
            "");
}

TEST_F(LateWorkTest, ARecordingLivesUntilItsReplayHasRun) {
  auto recording = device_.Record([&] { return Store(1); });
  ASSERT_TRUE(device_.Replay(**recording).ok());
  *recording = nullptr;
  EXPECT_EQ(Wait(), "a recording was destroyed before its replay had run");
}

}  // namespace
}  // namespace quire::testing
