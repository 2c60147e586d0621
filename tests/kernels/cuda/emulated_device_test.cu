// Tests the emulated device itself rather than the kernels on it: memory, the limits of a chip, and
// the order of launches.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/device/clear_padding.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/primitives.cuh"
#include "kernels/cuda/emulator/emulated_device.h"
#include "kernels/cuda/emulator/sanitizers.h"
#include "kernels/quant/float16.h"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/kernel_testing.h"

namespace quire::testing {
namespace {

using namespace kernels::cuda;
using emulator::EmulatedDevice;
using ::testing::HasSubstr;

struct Params {
  float* out;
  int variant;
};

EmulatedDevice Chip(int compute_capability) {
  return EmulatedDevice({.compute_capability = compute_capability});
}

// Runs `kernel` and returns the message of the launch or of the fault, or an empty string.
std::string FaultOf(Device& device, const LaunchConfig& config, void (*kernel)(Params),
                    const Params& params = {}) {
  const absl::Status launched = Launch(device, config, kernel, params);
  return std::string((launched.ok() ? device.Synchronize() : launched).message());
}

// --- Products

// A product has the bits that device.h promises, and no test may rely on more.
TEST(EmulatedDeviceTest, ARowHasItsBitsInProductsOfItsShapeAlone) {
  constexpr int64_t kMost = 16, kDepth = 96, kCompared = 8;
  const auto device = MakeDevice();
  const std::vector<float> row = Normal(1, kDepth);
  std::vector<float> rows;
  for (int64_t i = 0; i <= kMost; ++i) rows.insert(rows.end(), row.begin(), row.end());
  for (const kernels::DType type : {kernels::DType::kF32, kernels::DType::kBF16}) {
    SCOPED_TRACE(Name(type));
    DeviceFloats a(*device, type, rows), b(*device, type, Normal(2, kMost * kDepth));
    // Returns the first numbers of a row of the product of equal rows, of which the first is
    // `first`.
    const auto multiply = [&](GemmArgs args, int64_t first = 0) {
      DeviceFloats d(*device, kernels::DType::kF32, std::vector<float>(kMost * kMost));
      args.d = d.View({1}).raw();
      args.a = a.View({kMost + 1, kDepth}).Rows(first, args.m).raw();
      args.b = b.View({1}).raw();
      args.k = args.lda = args.ldb = kDepth;
      args.ldd = kMost;
      args.type = type;
      args.output_type = kernels::DType::kF32;
      EXPECT_TRUE(device->Gemm(args).ok());
      const std::vector<float> all = d.ToHost();
      const std::vector<float> result(all.begin(), all.begin() + kCompared);
      for (int64_t i = 1; i < args.m; ++i) {
        EXPECT_TRUE(std::equal(result.begin(), result.end(), all.begin() + i * kMost)) << i;
      }
      return result;
    };
    const std::vector<float> want = multiply({.m = 10, .n = 16});
    EXPECT_EQ(multiply({.m = 9, .n = 16}), want) << "of one bucket";
    EXPECT_NE(multiply({.m = 8, .n = 16}), want);
    EXPECT_NE(multiply({.m = 10, .n = 8}), want);
    EXPECT_NE(multiply({.m = 10, .n = 16}, /*first=*/1), want) << "at multiples of 16 bytes";
    EXPECT_NE(multiply({.m = 10, .n = 16, .accumulate = true}), want);
  }
}

// --- Memory

TEST(EmulatedDeviceTest, OnlyItsOwnWorkTouchesItsMemory) {
  const auto device = MakeDevice();
  const kernels::DeviceBuffer memory = *device->Allocate(20), staging = *device->AllocateHost(20);
  const auto* const bytes = static_cast<const char*>(memory.data());
  for (const int i : {0, 19}) {
    EXPECT_EQ(emulator::AsanIsPoisoned(bytes + i), emulator::kAddressSanitizer) << i;
  }
  ASSERT_TRUE(device->Fill(memory.data(), 7, 20).ok());
  ASSERT_TRUE(device->CopyToHost(staging.data(), memory.data(), 20).ok());
  ASSERT_TRUE(device->Synchronize().ok());
  EXPECT_EQ(static_cast<const char*>(staging.data())[19], 7);
  EXPECT_EQ(emulator::AsanIsPoisoned(bytes), emulator::kAddressSanitizer);
}

// Writes the maximum of 1 and an unwritten value, twice. The first unwritten value is in fresh
// shared memory, and the second is the target of a copy in flight.
__global__ void TakesMaximaOfPoison(const __grid_constant__ Params p) {
  float* const shared = DynamicShared<float>();
  p.out[0] = fmaxf(1.0f, shared[0]);
  CpAsync<4>(shared, p.out, true);
  CpAsyncCommit();
  p.out[1] = fmaxf(1.0f, shared[0]);
  CpAsyncWait<0>();
}

TEST(EmulatedDeviceTest, PoisonWinsMaximaOrSpoilsSums) {
  for (const emulator::Poison poison : {emulator::Poison::kNaN, emulator::Poison::kLarge}) {
    const bool large = poison == emulator::Poison::kLarge;
    EmulatedDevice device({.execution = {.poison = poison}});
    const kernels::DeviceBuffer memory = *device.Allocate(4);
    uint32_t fresh = 0;
    ASSERT_TRUE(device.CopyToHost(&fresh, memory.data(), 4).ok());
    ASSERT_TRUE(device.Synchronize().ok());
    const auto half = static_cast<uint16_t>(fresh);
    for (const float value :
         {emulator::FloatOf(poison), kernels::Bf16ToF32(half), kernels::F16ToF32(half)}) {
      EXPECT_EQ(std::isfinite(value), large);
      EXPECT_EQ(value > 50000.0f, large);
    }
    EXPECT_EQ(std::isnan(std::bit_cast<float>(fresh)), !large);

    DeviceArray<float> out(device, 2);
    EXPECT_EQ(FaultOf(device, {.block = {1}, .shared_bytes = 4}, &TakesMaximaOfPoison,
                      {.out = out.data()}),
              "");
    const float want = large ? emulator::FloatOf(poison) : 1.0f;
    EXPECT_THAT(out.ToHost(), ::testing::ElementsAre(want, want));
  }
}

// --- The chip

__global__ void DoesNothing(const __grid_constant__ Params) {}

TEST(EmulatedDeviceTest, SharedMemoryIsTheChips) {
  for (const auto& [capability, kibibytes] :
       {std::pair(75, 64), {80, 163}, {86, 99}, {87, 163}, {89, 99}, {90, 227}, {120, 99}}) {
    EmulatedDevice device = Chip(capability);
    EXPECT_EQ(FaultOf(device, {.shared_bytes = kibibytes << 10}, &DoesNothing), "") << capability;
    EXPECT_THAT(FaultOf(device, {.shared_bytes = (kibibytes << 10) + 1}, &DoesNothing),
                HasSubstr("of shared memory on emulated device"))
        << capability;
  }
}

// Each of these kernels uses one feature that was new in compute capability 9.0.
__global__ void InitsAnMbarrier(const __grid_constant__ Params) {
  if (threadIdx.x == 0) MbarrierInit(DynamicShared<uint64_t>(), 1);
}
__global__ void FencesWgmma(const __grid_constant__ Params) { WgmmaFence(); }
__global__ void TakesRegisters(const __grid_constant__ Params p) {
  if (p.variant == 0) ShrinkRegisters<24>();
  if (p.variant == 1) GrowRegisters<240>();
}

TEST(EmulatedDeviceTest, WhatAChipCannotDoIsRefusedByName) {
  const LaunchConfig config = {.block = {128}, .shared_bytes = 8};
  const auto fault_of = [&](int capability, void (*kernel)(Params), const Params& params = {}) {
    EmulatedDevice device = Chip(capability);
    return FaultOf(device, config, kernel, params);
  };
  EXPECT_THAT(fault_of(89, &InitsAnMbarrier),
              HasSubstr("an mbarrier needs compute capability 9.0, and this chip has 8.9"));
  EXPECT_THAT(fault_of(89, &FencesWgmma), HasSubstr("wgmma needs compute capability 9.0"));
  for (const int variant : {0, 1}) {
    EXPECT_THAT(fault_of(89, &TakesRegisters, {.variant = variant}),
                HasSubstr("setmaxnreg needs compute capability 9.0"));
    EXPECT_EQ(fault_of(90, &TakesRegisters, {.variant = variant}), "");
  }
  EXPECT_EQ(fault_of(90, &InitsAnMbarrier), "");
  EXPECT_EQ(fault_of(90, &FencesWgmma), "");

  EmulatedDevice ada = Chip(89), hopper = Chip(90);
  const kernels::DeviceBuffer memory = *ada.Allocate(64 * 8 * 2);
  const TensorMapSpec spec = {
      .data = memory.data(), .rank = 2, .dims = {64, 8}, .strides = {2, 128}, .box = {64, 8}};
  EXPECT_THAT(std::string(ada.MakeTensorMap(spec).status().message()),
              HasSubstr("emulated device: TMA needs compute capability 9.0"));
  EXPECT_TRUE(hopper.MakeTensorMap(spec).ok());
}

// --- Launches

// No thread waits for the previous launch in variant 0. One thread of each block waits in variant
// 1. In variant 2, one thread waits, but only in the first of two blocks.
__global__ void DependsOnAnother(const __grid_constant__ Params p) {
  if (p.variant > 0 && threadIdx.x == 5 && blockIdx.x < 3u - static_cast<unsigned>(p.variant)) {
    GridDependencyWait();
  }
}

TEST(EmulatedDeviceTest, ABlockThatMayOverlapTheLaunchBeforeItHasToWait) {
  const auto fault_of = [](bool overlaps, int variant) {
    EmulatedDevice device;
    return FaultOf(device, {.grid = {2}, .block = {32}, .overlaps_previous = overlaps},
                   &DependsOnAnother, {.variant = variant});
  };
  const std::string fault = "ends with no GridDependencyWait() in a launch that may overlap";
  EXPECT_THAT(fault_of(true, 0), HasSubstr("block (0,0,0) " + fault));
  EXPECT_EQ(fault_of(true, 1), "");
  EXPECT_THAT(fault_of(true, 2), HasSubstr("block (1,0,0) " + fault));
  EXPECT_EQ(fault_of(false, 0), "");
}

// --- The order of threads

#if !defined(QUIRE_EMULATOR_TSAN)
// Writes the largest distance that warp 0 sees between its own count of steps and the count of warp
// 1. Both warps make the same steps.
__global__ void CountsSteps(const __grid_constant__ Params p) {
  int* const steps = DynamicShared<int>();
  steps[threadIdx.x / 32] = 0;
  __syncthreads();
  int most = 0;
  for (int i = 0; i < 500; ++i) {
    if (threadIdx.x % 32 == 0) steps[threadIdx.x / 32] = i;
    __syncwarp();
    most = std::max(most, std::abs(steps[1] - i));
  }
  if (threadIdx.x == 0) p.out[0] = static_cast<float>(most);
}

TEST(EmulatedDeviceTest, InRandomOrderAWarpMayBeFarAhead) {
  for (const emulator::ThreadOrder order :
       {emulator::ThreadOrder::kForward, emulator::ThreadOrder::kReverse,
        emulator::ThreadOrder::kRandom}) {
    const bool random = order == emulator::ThreadOrder::kRandom;
    EmulatedDevice device({.execution = {.order = order, .seed = 1}});
    DeviceArray<float> out(device, 1);
    EXPECT_EQ(
        FaultOf(device, {.block = {64}, .shared_bytes = 8}, &CountsSteps, {.out = out.data()}), "");
    EXPECT_EQ(out.ToHost()[0] > 30.0f, random);
    EXPECT_EQ(out.ToHost()[0] > 2.0f, random);
  }
}
#endif

}  // namespace
}  // namespace quire::testing
