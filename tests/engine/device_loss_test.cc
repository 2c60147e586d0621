// Tests that a device with a fault that stays ends every request at once.

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulator/faulty_device.h"
#include "tests/testing/engine_harness.h"
#include "tests/testing/temp_directory.h"

namespace quire::engine {
namespace {

using kernels::cuda::emulator::FaultyDevice;
using testing::EngineHarness;
using testing::GreedyParams;
using ::testing::HasSubstr;
using testing::RandomIds;
using testing::TempDirectory;

TEST(DeviceLossTest, EndsWhatRunsAndWhatStallsAndWhatWaits) {
  const TempDirectory directory;
  const auto harness = EngineHarness::TinyLlama(
      {.max_num_seqs = 1,  // beside the stream that stalls
       .make_backend =
           [&directory] {
             return *kernels::cuda::CreateCudaBackend(
                 std::make_unique<FaultyDevice>(directory.path() + "/device"));
           },
       .kv_dtype = kernels::DType::kF32});
  const auto stalls = harness->Submit(GreedyParams(RandomIds(5, 1), 400), /*room=*/2);
  ASSERT_TRUE(stalls->WaitDeltas(2));
  const auto runs = harness->Submit(GreedyParams(RandomIds(5, 2), 400));
  harness->WaitForFrontend();  // so that it has the place
  const auto waits = harness->Submit(GreedyParams(RandomIds(5, 3), 400));
  harness->WaitForFrontend();
  EXPECT_FALSE(harness->engine().liveness().device_lost);
  ASSERT_TRUE(runs->WaitDeltas(8));

  directory.Write("device.fault", "");
  ASSERT_TRUE(runs->WaitFinished());
  EXPECT_EQ(runs->status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(runs->status().message(), HasSubstr("an illegal memory access"));
  EXPECT_TRUE(harness->engine().liveness().device_lost);
  for (const auto& other : {stalls, waits}) {
    ASSERT_TRUE(other->WaitFinished());
    EXPECT_EQ(other->status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(other->status().message(), HasSubstr("the device is lost"));
  }
  ASSERT_TRUE(harness->engine().WaitIdle(absl::Minutes(1)).ok());
  EXPECT_EQ(harness->engine().stats().steps_failed, 2) << "one more was on its way";
}

}  // namespace
}  // namespace quire::engine
