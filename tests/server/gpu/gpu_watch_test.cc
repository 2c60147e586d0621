// Tests the watch of a GPU with a library in the place of NVML.

#include "server/gpu/gpu_watch.h"

#include <atomic>
#include <dlfcn.h>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;

constexpr char kGpu[] = "0000:17:00.0";
constexpr absl::Duration kPeriod = absl::Milliseconds(10);

class GpuWatchTest : public ::testing::Test {
 protected:
  template <typename T>
  static std::atomic<T>& Variable(const char* name) {
    static void* const library = ::dlopen(FAKE_NVML, RTLD_NOW);
    return *static_cast<std::atomic<T>*>(::dlsym(library, name));
  }

  template <typename Condition>
  static bool WaitUntil(const GpuWatch& watch, Condition condition) {
    for (int i = 0; i < 3000; ++i) {
      if (condition(watch.readings())) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }

  std::atomic<bool>& hangs_ = Variable<bool>("fake_nvml_hangs");
  std::atomic<int>& xids_ = Variable<int>("fake_nvml_xids");
  std::atomic<int>& users_ = Variable<int>("fake_nvml_users");
};

TEST_F(GpuWatchTest, ReadsWhatTheDriverTells) {
  {
    const auto watch = GpuWatch::Start(kGpu, kPeriod, FAKE_NVML);
    ASSERT_TRUE(watch.ok()) << watch.status();
    ASSERT_TRUE(WaitUntil(**watch, [](const GpuReadings& r) { return r.busy_ratio.has_value(); }));
    const GpuReadings readings = (*watch)->readings();
    EXPECT_EQ(readings.memory_used_bytes, int64_t{60} << 30);
    EXPECT_EQ(readings.memory_total_bytes, int64_t{80} << 30);
    EXPECT_EQ(readings.busy_ratio, 0.97);
    EXPECT_EQ(readings.memory_busy_ratio, 0.81);
    EXPECT_EQ(readings.sm_clock_hz, 1'755'000'000);
    EXPECT_EQ(readings.memory_clock_hz, 2'619'000'000);
    EXPECT_EQ(readings.temperature_celsius, 61);
    EXPECT_EQ(readings.power_watts, std::nullopt) << "this GPU does not tell it";
    EXPECT_EQ(readings.corrected_ecc_errors, 5);
    EXPECT_EQ(readings.uncorrected_ecc_errors, 2);
    EXPECT_EQ(readings.xid_errors, 0);
    EXPECT_EQ(readings.last_xid, std::nullopt);
    EXPECT_EQ(users_, 1);
  }
  EXPECT_EQ(users_, 0);
}

TEST_F(GpuWatchTest, CountsTheErrorsOfTheGpu) {
  const auto watch = GpuWatch::Start(kGpu, kPeriod, FAKE_NVML);
  ASSERT_TRUE(watch.ok()) << watch.status();
  xids_ = 3;
  EXPECT_TRUE(WaitUntil(**watch, [](const GpuReadings& r) { return r.xid_errors == 3; }));
  EXPECT_EQ((*watch)->readings().last_xid, 79);
}

TEST_F(GpuWatchTest, ADriverThatHangsHoldsNobodyUp) {
  auto watch = GpuWatch::Start(kGpu, kPeriod, FAKE_NVML);
  ASSERT_TRUE(watch.ok()) << watch.status();
  ASSERT_TRUE(WaitUntil(**watch, [](const GpuReadings& r) { return r.busy_ratio.has_value(); }));
  hangs_ = true;
  EXPECT_TRUE(
      WaitUntil(**watch, [](const GpuReadings& r) { return r.age > absl::Milliseconds(200); }));
  EXPECT_EQ((*watch)->readings().busy_ratio, 0.97) << "the last value stays";
  const absl::Time begin = absl::Now();
  watch->reset();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  hangs_ = false;
  for (int i = 0; i < 30000 && users_ > 0; ++i) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(users_, 0) << "the thread ends after all";
}

TEST_F(GpuWatchTest, SaysWhatIsMissing) {
  const auto error = [](const char* gpu, const char* library) {
    return std::string(GpuWatch::Start(gpu, kPeriod, library).status().message());
  };
  EXPECT_THAT(error(kGpu, "libno-such-library.so.1"), HasSubstr("install NVIDIA's driver"));
  EXPECT_THAT(error(kGpu, "libc.so.6"), HasSubstr("libc.so.6 lacks nvml"));
  EXPECT_EQ(error("0000:18:00.0", FAKE_NVML), "nvml: finding the GPU by its PCI bus id: Not Found");
  EXPECT_EQ(users_, 0);
}

}  // namespace
}  // namespace quire::server
