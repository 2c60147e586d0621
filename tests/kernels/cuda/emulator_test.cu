// Tests every kind of misuse that the emulator promises to report. Each kernel is wrong in one way,
// and a test checks the report about it. A GPU would run most of these kernels without an error.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/primitives.cuh"
#include "kernels/cuda/emulator/sanitizers.h"
#include "tests/kernels/cuda/device_testing.h"

namespace quire::testing {
namespace {

using namespace kernels::cuda;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr unsigned kAllLanes = 0xffffffffu;

struct Params {
  const float* in;
  float* out;
  int variant;
};

// A device and two arrays on it. After a fault, a device cannot be used any more.
struct World {
  std::unique_ptr<Device> device = MakeDevice();
  DeviceArray<float> in{*device, std::vector<float>(64, 1.0f)};
  DeviceArray<float> out{*device, std::vector<float>(64, 0.0f)};
};

class EmulatorTest : public ::testing::Test {
 protected:
  // Runs `kernel` in a new World and returns the message of the fault, or an empty string.
  std::string FaultOf(void (*kernel)(Params), unsigned threads, int64_t shared_bytes = 0,
                      int variant = 0) {
    world_ = std::make_unique<World>();
    EXPECT_TRUE(Launch(*world_->device, {.block = {threads}, .shared_bytes = shared_bytes}, kernel,
                       ParamsOf(variant))
                    .ok());
    return std::string(world_->device->Synchronize().message());
  }
  Params ParamsOf(int variant = 0) { return {world_->in.data(), world_->out.data(), variant}; }

  std::unique_ptr<World> world_ = std::make_unique<World>();
};

// --- Asynchronous copies

// Variant 0 reads before any wait. Variant 1 waits, but leaves the group of the copy in flight.
// Variant 2 waits for the group of the copy.
__global__ void ReadsCopyEarly(const __grid_constant__ Params p) {
  float* const shared = DynamicShared<float>();
  CpAsync<4>(shared + threadIdx.x, p.in + threadIdx.x, true);
  CpAsyncCommit();
  if (p.variant == 1) CpAsyncWait<1>();
  if (p.variant == 2) CpAsyncWait<0>();
  p.out[threadIdx.x] = shared[threadIdx.x];
  CpAsyncWait<0>();
}

TEST_F(EmulatorTest, ACopyIsNaNUntilItsGroupHasBeenWaitedFor) {
  for (const int variant : {0, 1}) {
    EXPECT_EQ(FaultOf(&ReadsCopyEarly, 32, 128, variant), "");
    EXPECT_TRUE(std::isnan(world_->out.ToHost()[0])) << variant;
  }
  EXPECT_EQ(FaultOf(&ReadsCopyEarly, 32, 128, 2), "");
  EXPECT_EQ(world_->out.ToHost()[0], 1.0f);
}

__global__ void LeavesCopyInFlight(const __grid_constant__ Params p) {
  CpAsync<4>(DynamicShared<float>() + threadIdx.x, p.in, true);
  CpAsyncCommit();
}

TEST_F(EmulatorTest, AThreadThatEndsWithACopyInFlightIsReported) {
  EXPECT_THAT(FaultOf(&LeavesCopyInFlight, 32, 128), HasSubstr("ends with cp.async in flight"));
}

__global__ void CopiesFromAnOddAddress(const __grid_constant__ Params p) {
  CpAsync<16>(DynamicShared<float>(), p.in + (p.variant == 0 ? 1 : 0), true);
}
__global__ void CopiesToAnOddAddress(const __grid_constant__ Params p) {
  CpAsync<8>(DynamicShared<float>() + 1, p.in, true);
}
__global__ void CopiesOutOfSharedMemory(const __grid_constant__ Params p) {
  CpAsync<16>(DynamicShared<float>() + 32, p.in, true);
}
__global__ void LoadsAnOddVector(const __grid_constant__ Params p) {
  p.out[0] = LoadReadOnly<float4>(p.in + 2).x;
}

TEST_F(EmulatorTest, AddressesAreChecked) {
  EXPECT_THAT(FaultOf(&CopiesFromAnOddAddress, 1, 128),
              HasSubstr("the source of cp.async is not 16-byte aligned"));
  EXPECT_THAT(FaultOf(&CopiesToAnOddAddress, 1, 128),
              HasSubstr("the target of cp.async is not 8-byte aligned"));
  EXPECT_THAT(FaultOf(&CopiesOutOfSharedMemory, 1, 128), HasSubstr("not in shared memory"));
  EXPECT_THAT(FaultOf(&LoadsAnOddVector, 1), HasSubstr("a vector load is not 16-byte aligned"));
}

// --- Barriers

__global__ void MeetsAtTwoBarriers(const __grid_constant__ Params) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_F(EmulatorTest, ADivergentBarrierIsReportedWithItsPlace) {
  const std::string fault = FaultOf(&MeetsAtTwoBarriers, 64);
  EXPECT_THAT(fault, HasSubstr("threads of one block meet at different barriers"));
  EXPECT_THAT(fault, HasSubstr("block (0,0,0) thread (32,0,0) at emulator_test.cu:"));
}

__global__ void WaitsForThreadsThatNeverCome(const __grid_constant__ Params) {
  if (threadIdx.x < 32) NamedBarrier(1, 64);
}

TEST_F(EmulatorTest, ADeadlockSaysWhoWaitsForWhat) {
  EXPECT_THAT(FaultOf(&WaitsForThreadsThatNeverCome, 64),
              HasSubstr("deadlock: block (0,0,0): 32 threads wait for a named barrier at "
                        "emulator_test.cu:"));
}

__global__ void DisagreesAboutABarrier(const __grid_constant__ Params) {
  NamedBarrier(1, threadIdx.x < 32 ? 64 : 96);
}
__global__ void NamesBarrierZero(const __grid_constant__ Params) { NamedBarrier(0, 32); }
__global__ void CountsPartOfAWarp(const __grid_constant__ Params) { NamedBarrier(1, 40); }

TEST_F(EmulatorTest, NamedBarriersAreChecked) {
  EXPECT_THAT(FaultOf(&DisagreesAboutABarrier, 96), HasSubstr("one thread waits for 64 threads"));
  EXPECT_THAT(FaultOf(&NamesBarrierZero, 32), HasSubstr("want 1 to 15"));
  EXPECT_THAT(FaultOf(&CountsPartOfAWarp, 64), HasSubstr("want a multiple of 32"));
}

// A barrier does not wait for threads that have ended, as CUDA specifies.
__global__ void EndsBeforeTheBarrier(const __grid_constant__ Params p) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  p.out[threadIdx.x] = 2.0f;
}

TEST_F(EmulatorTest, ABarrierOpensWithoutThreadsThatHaveEnded) {
  EXPECT_EQ(FaultOf(&EndsBeforeTheBarrier, 64), "");
  EXPECT_EQ(world_->out.ToHost()[39], 2.0f);
}

// --- Warps

__global__ void ShufflesFromOutsideTheMask(const __grid_constant__ Params p) {
  if (threadIdx.x < 16) p.out[threadIdx.x] = __shfl_xor_sync(0xffffu, 1.0f, 16);
}
__global__ void IsNotInItsOwnMask(const __grid_constant__ Params p) {
  p.out[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 0);
}
__global__ void ShufflesAtTwoLines(const __grid_constant__ Params p) {
  if (threadIdx.x < 16) {
    p.out[threadIdx.x] = __shfl_sync(kAllLanes, 1.0f, 0);
  } else {
    p.out[threadIdx.x] = __shfl_sync(kAllLanes, 2.0f, 0);
  }
}
__global__ void NamesTwoMasks(const __grid_constant__ Params p) {
  p.out[threadIdx.x] = __shfl_sync(threadIdx.x < 16 ? kAllLanes : 0xffff0001u, 1.0f, 0);
}
__global__ void ShufflesWithTheDead(const __grid_constant__ Params p) {
  if (threadIdx.x < 8) return;
  p.out[threadIdx.x] = __shfl_sync(kAllLanes, 1.0f, 9);
}
__global__ void VotesWithoutHalfTheWarp(const __grid_constant__ Params p) {
  if (threadIdx.x < 16) p.out[threadIdx.x] = __any_sync(kAllLanes, true) ? 1.0f : 0.0f;
  __syncwarp(0xffffu << (threadIdx.x < 16 ? 0 : 16));
}

TEST_F(EmulatorTest, LanesThatDoNotMeetAreReported) {
  EXPECT_THAT(FaultOf(&ShufflesFromOutsideTheMask, 32),
              HasSubstr("lane 0 shuffles from lane 16, outside its mask"));
  EXPECT_THAT(FaultOf(&IsNotInItsOwnMask, 32), HasSubstr("a lane is not in its own mask"));
  EXPECT_THAT(FaultOf(&ShufflesAtTwoLines, 32),
              HasSubstr("lanes of one warp meet at different instructions"));
  EXPECT_THAT(FaultOf(&NamesTwoMasks, 32), HasSubstr("different masks"));
  EXPECT_THAT(FaultOf(&ShufflesWithTheDead, 32), HasSubstr("lane 0 of the mask has ended"));
  EXPECT_THAT(FaultOf(&ShufflesWithTheDead, 24), HasSubstr("of the mask has ended"))
      << "lanes that never were";
  EXPECT_THAT(FaultOf(&VotesWithoutHalfTheWarp, 32), HasSubstr("deadlock"));
}

// Each lane hands a value to a neighbouring lane through shared memory. Only variant 1 has the
// barrier that the lanes need.
__global__ void HandsToItsNeighbour(const __grid_constant__ Params p) {
  float* const shared = DynamicShared<float>();
  shared[threadIdx.x] = 3.0f;
  if (p.variant == 1) __syncwarp();
  p.out[threadIdx.x] = shared[(threadIdx.x + 1) % 32];
}

__global__ void LoadsMatrixEarly(const __grid_constant__ Params p) {
  uint32_t* const shared = DynamicShared<uint32_t>();
  // Each of lanes 0 to 7 fills the matrix row whose address the next lane passes to LdMatrix.
  for (unsigned i = 0; i < 4 && threadIdx.x < 8; ++i) shared[(threadIdx.x * 4 + 4 + i) % 32] = 0;
  if (p.variant == 1) __syncwarp();
  uint32_t r[1];
  LdMatrix(r, shared + threadIdx.x % 8 * 4);
  p.out[threadIdx.x] = r[0] == 0 ? 0.0f : 1.0f;
}

#if !defined(QUIRE_EMULATOR_TSAN)
TEST_F(EmulatorTest, LanesDoNotRunInLockstep) {
  EXPECT_EQ(FaultOf(&HandsToItsNeighbour, 32, 128, 0), "");
  EXPECT_TRUE(std::isnan(world_->out.ToHost()[0]));
  EXPECT_EQ(FaultOf(&HandsToItsNeighbour, 32, 128, 1), "");
  EXPECT_EQ(world_->out.ToHost()[0], 3.0f);
  EXPECT_EQ(FaultOf(&LoadsMatrixEarly, 32, 128, 0), "");
  EXPECT_EQ(world_->out.ToHost()[0], 1.0f);
  EXPECT_EQ(FaultOf(&LoadsMatrixEarly, 32, 128, 1), "");
  EXPECT_EQ(world_->out.ToHost()[0], 0.0f);
}
#endif

__global__ void LoadsAnOddMatrixRow(const __grid_constant__ Params p) {
  uint32_t r[1];
  LdMatrix(r, DynamicShared<uint32_t>() + 1);
  p.out[0] = static_cast<float>(r[0]);
}

TEST_F(EmulatorTest, MatrixRowsAreChecked) {
  EXPECT_THAT(FaultOf(&LoadsAnOddMatrixRow, 32, 128),
              HasSubstr("a row of ldmatrix is not 16-byte aligned"));
}

// --- mbarriers and wgmma

__global__ void ArrivesBeforeTheInit(const __grid_constant__ Params) {
  MbarrierArrive(DynamicShared<uint64_t>());
}
__global__ void ArrivesTooOften(const __grid_constant__ Params) {
  uint64_t* const barrier = DynamicShared<uint64_t>();
  MbarrierInit(barrier, 1);
  MbarrierArriveExpect(barrier, 16);
  MbarrierArrive(barrier);
}
__global__ void WaitsForBytesThatNeverCome(const __grid_constant__ Params) {
  uint64_t* const barrier = DynamicShared<uint64_t>();
  MbarrierInit(barrier, 1);
  MbarrierArriveExpect(barrier, 16);
  MbarrierWait(barrier, 0);
}

TEST_F(EmulatorTest, MbarriersAreChecked) {
  EXPECT_THAT(FaultOf(&ArrivesBeforeTheInit, 1, 8), HasSubstr("used before its init"));
  EXPECT_THAT(FaultOf(&ArrivesTooOften, 1, 8), HasSubstr("too many arrivals"));
  EXPECT_THAT(FaultOf(&WaitsForBytesThatNeverCome, 1, 8),
              HasSubstr("deadlock: block (0,0,0): 1 thread waits for an mbarrier"));
}

enum Wgmma { kRight, kNoProxyFence, kNoFence, kReadsEarly, kEvenLanesAlone, kLeadsOut };

// Multiplies matrices of ones over a depth of 16, so that every sum is 16.
__global__ void MultipliesOnes(const __grid_constant__ Params p) {
  const Bf16 one = FromFloat<Bf16>(1.0f);
  Bf16* const tile = DynamicShared<Bf16>();
  for (int i = static_cast<int>(threadIdx.x); i < 128 * 64; i += 128) tile[i] = one;
  if (p.variant != kNoProxyFence) FenceAsyncProxy();
  __syncthreads();
  float d[16][4];
  if (p.variant != kNoFence) WgmmaFence();
  if (p.variant == kEvenLanesAlone && threadIdx.x % 2 == 1) WgmmaCommit();
  const uint64_t descriptor =
      WgmmaDescriptor(tile + (p.variant == kLeadsOut ? 64 * 64 : 0), 16, 1024);
  WgmmaShared<Bf16>(d, descriptor, descriptor, false);
  WgmmaCommit();
  if (p.variant == kReadsEarly) p.out[threadIdx.x % 64] = d[0][0];
  WgmmaWait<0>();
  if (p.variant == kRight && threadIdx.x < 64) {
    p.out[threadIdx.x] = d[threadIdx.x / 4][threadIdx.x % 4];
  }
}

TEST_F(EmulatorTest, WgmmaIsChecked) {
  constexpr int64_t kBytes = 128 * 64 * 2;
  EXPECT_THAT(FaultOf(&MultipliesOnes, 128, kBytes, kNoProxyFence),
              HasSubstr("wgmma reads what a thread wrote without fence.proxy.async"));
  EXPECT_THAT(FaultOf(&MultipliesOnes, 128, kBytes, kNoFence), HasSubstr("without wgmma.fence"));
  EXPECT_THAT(FaultOf(&MultipliesOnes, 128, kBytes, kEvenLanesAlone),
              HasSubstr("threads of one warpgroup meet at different instructions"));
  EXPECT_THAT(FaultOf(&MultipliesOnes, 128, kBytes, kLeadsOut), HasSubstr("out of shared memory"));
  EXPECT_EQ(FaultOf(&MultipliesOnes, 128, kBytes, kRight), "");
  EXPECT_THAT(world_->out.ToHost(), Each(16.0f));
#if !defined(QUIRE_EMULATOR_TSAN)
  EXPECT_EQ(FaultOf(&MultipliesOnes, 128, kBytes, kReadsEarly), "");
  EXPECT_TRUE(std::isnan(world_->out.ToHost()[0]));
#endif
}

// --- Blocks

__global__ void CountsBlocks(const __grid_constant__ Params p) {
  float* const shared = DynamicShared<float>();
  p.out[blockIdx.x] = shared[0];
  shared[0] = 1.0f;
}

TEST_F(EmulatorTest, SharedMemoryIsNaNInEveryBlock) {
  const Params params = ParamsOf();
  ASSERT_TRUE(Launch(*world_->device, {.grid = {64}, .block = {1}, .shared_bytes = 4},
                     &CountsBlocks, params)
                  .ok());
  for (const float value : world_->out.ToHost()) EXPECT_TRUE(std::isnan(value));
}

__global__ void DoesNothing(const __grid_constant__ Params) {}

TEST_F(EmulatorTest, AShapeBeyondTheDeviceIsRefusedAtOnce) {
  const Params params = {};
  for (const LaunchConfig& config :
       {LaunchConfig{.block = {1025}}, LaunchConfig{.grid = {0}}, LaunchConfig{.grid = {1, 65536}},
        LaunchConfig{.shared_bytes = 228 << 10}}) {
    EXPECT_EQ(Launch(*world_->device, config, &DoesNothing, params).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// --- Sanitizers

#if defined(QUIRE_EMULATOR_ASAN)
__global__ void ReadsPastTheEnd(const __grid_constant__ Params p) { p.out[0] = p.in[64]; }
__global__ void WritesPastSharedMemory(const __grid_constant__ Params p) {
  DynamicShared<volatile float>()[p.variant] = 1.0f;
}

TEST_F(EmulatorTest, AddressSanitizerSeesOutOfBounds) {
  EXPECT_DEATH(FaultOf(&ReadsPastTheEnd, 1), "heap-buffer-overflow");
  EXPECT_DEATH(FaultOf(&WritesPastSharedMemory, 1, 128, 32), "heap-buffer-overflow");
  EXPECT_EQ(FaultOf(&WritesPastSharedMemory, 1, 128, 31), "");
}
#endif

#if defined(QUIRE_EMULATOR_TSAN)
// Variant 1 has the barrier that is needed between reading and writing.
__global__ void WritesBeforeOthersHaveRead(const __grid_constant__ Params p) {
  float* const shared = DynamicShared<float>();
  shared[threadIdx.x] = 1.0f;
  __syncthreads();
  p.out[threadIdx.x] = shared[63 - threadIdx.x];
  if (p.variant == 1) __syncthreads();
  shared[threadIdx.x] = 2.0f;
}

class EmulatorRaceTest : public EmulatorTest {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void ExpectRace(void (*kernel)(Params), int variant) {
    constexpr int kThreadSanitizersExit = 66;
    EXPECT_EXIT(
        {
          FaultOf(kernel, 64, 256, variant);
          std::exit(0);
        },
        ::testing::ExitedWithCode(kThreadSanitizersExit), "data race");
  }
};

TEST_F(EmulatorRaceTest, ThreadSanitizerSeesAMissingBarrier) {
  ExpectRace(&WritesBeforeOthersHaveRead, 0);
  EXPECT_EQ(FaultOf(&WritesBeforeOthersHaveRead, 64, 256, 1), "");
}

TEST_F(EmulatorRaceTest, ThreadSanitizerSeesAMissingWarpBarrier) {
  ExpectRace(&HandsToItsNeighbour, 0);
  ExpectRace(&LoadsMatrixEarly, 0);
  EXPECT_EQ(FaultOf(&HandsToItsNeighbour, 32, 128, 1), "");
  EXPECT_EQ(FaultOf(&LoadsMatrixEarly, 32, 128, 1), "");
}
#endif

}  // namespace
}  // namespace quire::testing
