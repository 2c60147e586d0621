// Tests that the emulated device overlaps kernels and blocks as a GPU does: a dependent launch runs
// ahead of the kernel before it, and blocks of a grid are resident together.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <set>
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
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kSize = 192;

struct Params {
  const float* in;
  float* out;
  int variant;
};

__global__ void WritesOnes(const __grid_constant__ Params p) {
  p.out[blockIdx.x * blockDim.x + threadIdx.x] = 1.0f;
}

// Copies a word in each thread: after the wait in variant 0, before it in variant 1. In variant 2 a
// cp.async is issued before the wait and waited for after it. In variant 3 another thread has
// waited.
__global__ void CopiesOnes(const __grid_constant__ Params p) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  float* const shared = DynamicShared<float>() + threadIdx.x;
  if (p.variant == 1) *shared = p.in[i];
  if (p.variant == 2) CpAsync<4>(shared, p.in + i, true);
  if (p.variant != 3 || threadIdx.x == 0) GridDependencyWait();
  CpAsyncCommit();
  CpAsyncWait<0>();
  __syncthreads();
  if (p.variant == 0 || p.variant == 3) *shared = p.in[i];
  p.out[i] = *shared;
}

constexpr LaunchConfig kDependent = {
    .grid = {kSize / 32}, .block = {32}, .shared_bytes = 128, .overlaps_previous = true};

class OverlapTest : public ::testing::TestWithParam<ThreadOrder> {
 protected:
  absl::Status WriteOnes() {
    return Launch(*device_, {.grid = {kSize / 32}, .block = {32}}, &WritesOnes,
                  {.out = between_.data()});
  }
  absl::Status CopyOnes(int variant) {
    return Launch(*device_, kDependent, &CopiesOnes,
                  {.in = between_.data(), .out = out_.data(), .variant = variant});
  }
  // Returns how many words the dependent launch has read too early.
  int64_t NumTooEarly() { return kSize - std::ranges::count(out_.ToHost(), 1.0f); }

  const std::unique_ptr<Device> device_ = MakeDevice(GetParam(), /*seed=*/2);
  DeviceArray<float> between_{*device_, kSize}, out_{*device_, kSize};
};

INSTANTIATE_TEST_SUITE_P(Orders, OverlapTest, ::testing::ValuesIn(kAllThreadOrders));

TEST_P(OverlapTest, ADependentLaunchSeesTheKernelBeforeOnceItHasWaited) {
  for (const int variant : {0, 3}) {
    ASSERT_TRUE(WriteOnes().ok());
    ASSERT_TRUE(CopyOnes(variant).ok());
    EXPECT_THAT(out_.ToHost(), Each(1.0f)) << variant;
  }
}

#if !defined(QUIRE_EMULATOR_TSAN)
TEST_P(OverlapTest, ADependentLaunchSeesOldMemoryBeforeItsWait) {
  for (const int variant : {1, 2}) {
    ASSERT_TRUE(device_->Fill(between_.data(), 0xff, kSize * 4).ok());
    ASSERT_TRUE(WriteOnes().ok());
    ASSERT_TRUE(CopyOnes(variant).ok());
    // The first two to four blocks run ahead.
    EXPECT_THAT(NumTooEarly(), ::testing::AllOf(::testing::Ge(64), ::testing::Le(128))) << variant;
  }
}

TEST_P(OverlapTest, AReplayOverlapsTheSame) {
  const auto recording = *device_->Record([&]() -> absl::Status {
    const absl::Status status = WriteOnes();
    return status.ok() ? CopyOnes(1) : status;
  });
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(device_->Fill(between_.data(), 0xff, kSize * 4).ok());
    ASSERT_TRUE(device_->Replay(*recording).ok());
    EXPECT_GE(NumTooEarly(), 64);
  }
}

TEST_P(OverlapTest, ADependentLaunchRunsAheadOfAGemm) {
  DeviceArray<float> a(*device_, std::vector<float>(kSize, 1.0f));
  DeviceArray<float> b(*device_, std::vector<float>(1, 1.0f));
  ASSERT_TRUE(device_
                  ->Gemm({.d = between_.data(),
                          .a = a.data(),
                          .b = b.data(),
                          .m = kSize,
                          .n = 1,
                          .k = 1,
                          .lda = 1,
                          .ldb = 1,
                          .ldd = 1,
                          .type = kernels::DType::kF32,
                          .output_type = kernels::DType::kF32})
                  .ok());
  ASSERT_TRUE(CopyOnes(1).ok());
  EXPECT_GE(NumTooEarly(), 64);
}

// Each block writes its number into the same words.
__global__ void AllWriteTheSame(const __grid_constant__ Params p) {
  p.out[threadIdx.x] = static_cast<float>(blockIdx.x);
}

TEST(OverlapOrderTest, TheLastBlockToWriteDependsOnTheOrder) {
  std::set<float> last;
  for (uint64_t seed = 0; seed < 9; ++seed) {
    const auto device = MakeDevice(kAllThreadOrders[seed % 3], seed);
    DeviceArray<float> out(*device, 64);
    ASSERT_TRUE(
        Launch(*device, {.grid = {8}, .block = {64}}, &AllWriteTheSame, {.out = out.data()}).ok());
    for (const float block : out.ToHost()) last.insert(block);
  }
  EXPECT_GE(last.size(), 3u);
}

// Each block writes 1 to a word of its own, and then counts the other blocks that have written 1
// and not yet written 2. A barrier lets other blocks run.
__global__ void CountsBlocksBetweenBarriers(const __grid_constant__ Params p) {
  if (threadIdx.x == 0) p.out[blockIdx.x] = 1.0f;
  for (int i = 0; i < 40; ++i) __syncthreads();
  if (threadIdx.x != 0) return;
  float between = 0.0f;
  for (unsigned i = 0; i < gridDim.x; ++i) between += p.out[i] == 1.0f ? 1.0f : 0.0f;
  p.out[gridDim.x + blockIdx.x] = between - 1.0f;
  p.out[blockIdx.x] = 2.0f;
}

// Each block takes a ticket after its wait.
__global__ void TakesATicket(const __grid_constant__ Params p) {
  GridDependencyWait();
  p.out[1 + blockIdx.x] = static_cast<float>(AtomicAdd(reinterpret_cast<int*>(p.out), 1));
}

TEST(OverlapOrderTest, BlocksRunByTheirNumbersUnlessInRandomOrder) {
  for (const bool overlaps : {false, true}) {
    const auto tickets = [&](ThreadOrder order) {
      const auto device = MakeDevice(order);
      DeviceArray<float> out(*device, std::vector<float>(9, 0.0f));
      EXPECT_TRUE(Launch(*device, {.grid = {8}, .block = {1}, .overlaps_previous = overlaps},
                         &TakesATicket, {.out = out.data()})
                      .ok());
      const std::vector<float> host = out.ToHost();
      return std::vector<float>(host.begin() + 1, host.end());
    };
    EXPECT_THAT(tickets(ThreadOrder::kForward), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
    EXPECT_THAT(tickets(ThreadOrder::kReverse), ElementsAre(7, 6, 5, 4, 3, 2, 1, 0));
  }
}

// Each thread takes 8 tickets, and writes how many others came between its first and its last.
__global__ void TakesTickets(const __grid_constant__ Params p) {
  int* const next = reinterpret_cast<int*>(p.out);
  const int first = AtomicAdd(next, 1);
  int last = first;
  for (int i = 1; i < 8; ++i) last = AtomicAdd(next, 1);
  p.out[1 + blockIdx.x] = static_cast<float>(last - first - 7);
}

TEST(OverlapOrderTest, AtomicsOfBlocksInterleaveInRandomOrder) {
  for (const ThreadOrder order : kAllThreadOrders) {
    const auto device = MakeDevice(order);
    DeviceArray<float> out(*device, std::vector<float>(9, 0.0f));
    ASSERT_TRUE(
        Launch(*device, {.grid = {8}, .block = {1}}, &TakesTickets, {.out = out.data()}).ok());
    const std::vector<float> host = out.ToHost();
    const float most = *std::max_element(host.begin() + 1, host.end());
    EXPECT_EQ(most > 0.0f, order == ThreadOrder::kRandom) << most;
  }
}

TEST(OverlapOrderTest, BlocksAreResidentTogetherInRandomOrder) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const auto device = MakeDevice(ThreadOrder::kRandom, seed);
    DeviceArray<float> out(*device, 32);
    ASSERT_TRUE(Launch(*device, {.grid = {16}, .block = {64}}, &CountsBlocksBetweenBarriers,
                       {.out = out.data()})
                    .ok());
    const std::vector<float> host = out.ToHost();
    EXPECT_EQ(*std::max_element(host.begin() + 16, host.end()), static_cast<float>(1 + seed));
  }
}
#endif

TEST_P(OverlapTest, NothingRunsAheadOfACopy) {
  ASSERT_TRUE(WriteOnes().ok());
  ASSERT_TRUE(device_->CopyOnDevice(between_.data(), between_.data(), 4).ok());
  ASSERT_TRUE(CopyOnes(1).ok());
  EXPECT_THAT(out_.ToHost(), Each(1.0f));
}

TEST_P(OverlapTest, NothingRunsAheadOfAMark) {
  const auto event = *device_->CreateEvent();
  ASSERT_TRUE(WriteOnes().ok());
  ASSERT_TRUE(device_->Mark(*event).ok());
  ASSERT_TRUE(CopyOnes(1).ok());
  ASSERT_TRUE(device_->Wait(*event).ok());
  EXPECT_THAT(out_.ToHost(), Each(1.0f));
}

__global__ void FaultsBeforeItsWait(const __grid_constant__ Params p) {
  if (p.variant == 1) NamedBarrier(1, 64);
  GridDependencyWait();
}

TEST_P(OverlapTest, AFaultBeforeTheWaitIsReported) {
  ASSERT_TRUE(WriteOnes().ok());
  ASSERT_TRUE(Launch(*device_, kDependent, &FaultsBeforeItsWait, {.variant = 1}).ok());
  EXPECT_THAT(std::string(device_->Synchronize().message()), HasSubstr("deadlock: block"));
}

#if defined(QUIRE_EMULATOR_TSAN)
class OverlapRaceTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  template <typename Work>
  void ExpectRace(const Work& work) {
    constexpr int kThreadSanitizersExit = 66;
    EXPECT_EXIT(
        {
          work();
          std::exit(0);
        },
        ::testing::ExitedWithCode(kThreadSanitizersExit), "data race");
  }
};

// Each block writes the same words, with a plain store in variant 0 and atomically in variant 1. In
// variant 2 only the last two blocks write.
__global__ void AllWrite(const __grid_constant__ Params p) {
  if (p.variant == 0) p.out[threadIdx.x] = 1.0f;
  if (p.variant == 2 && blockIdx.x >= gridDim.x - 2) p.out[threadIdx.x] = 1.0f;
  if (p.variant == 1) AtomicAdd(reinterpret_cast<int*>(p.out + threadIdx.x), 1);
}

TEST_F(OverlapRaceTest, ThreadSanitizerSeesBlocksThatWriteTheSameWords) {
  const auto run = [](int variant, ThreadOrder order) {
    const auto device = MakeDevice(order);
    DeviceArray<float> out(*device, 64);
    EXPECT_TRUE(Launch(*device, {.grid = {8}, .block = {64}}, &AllWrite,
                       {.out = out.data(), .variant = variant})
                    .ok());
    out.ToHost();
  };
  for (const ThreadOrder order : kAllThreadOrders) {
    ExpectRace([&] { run(0, order); });
    ExpectRace([&] { run(2, order); });
    run(1, order);
  }
}

TEST_F(OverlapRaceTest, ThreadSanitizerSeesAReadBeforeTheWait) {
  for (const int variant : {1, 2}) {
    ExpectRace([&] {
      const auto device = MakeDevice();
      DeviceArray<float> between(*device, kSize), out(*device, kSize);
      EXPECT_TRUE(Launch(*device, {.grid = {kSize / 32}, .block = {32}}, &WritesOnes,
                         {.out = between.data()})
                      .ok());
      EXPECT_TRUE(Launch(*device, kDependent, &CopiesOnes,
                         {.in = between.data(), .out = out.data(), .variant = variant})
                      .ok());
      out.ToHost();
    });
  }
}
#endif

}  // namespace
}  // namespace quire::testing
