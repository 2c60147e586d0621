// Tests the recordings, the timing, the tensor maps and the GEMM of a Device, on the device that
// this build has.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/primitives.cuh"
#include "tests/kernels/cuda/device_floats.h"
#include "tests/kernels/cuda/device_testing.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/kernels/rounding.h"

namespace quire::testing {
namespace {

using kernels::DType;
using kernels::cuda::Launch;
using ::testing::Each;

struct AddParams {
  float* numbers;
  float add;
};

__global__ void AddKernel(const __grid_constant__ AddParams p) { p.numbers[threadIdx.x] += p.add; }

class DeviceTest : public ::testing::Test {
 protected:
  absl::Status Add(float add) {
    return Launch(*device_, {.block = {32}}, &AddKernel, {numbers_.data(), add});
  }

  std::unique_ptr<kernels::cuda::Device> device_ = MakeDevice();
  DeviceArray<float> numbers_{*device_, std::vector<float>(32, 0.0f)};
};

TEST_F(DeviceTest, RunsARecordingOnceForEachReplayAndNotWhenItIsMade) {
  const auto recording = device_->Record([&] {
    const absl::Status first = Add(1.0f);
    return first.ok() ? Add(2.0f) : first;
  });
  ASSERT_TRUE(recording.ok()) << recording.status().ToString();
  EXPECT_THAT(numbers_.ToHost(), Each(0.0f));
  ASSERT_TRUE(device_->Replay(**recording).ok());
  ASSERT_TRUE(device_->Replay(**recording).ok());
  EXPECT_THAT(numbers_.ToHost(), Each(6.0f));
}

TEST_F(DeviceTest, AMultiprocessorRunsAsManyBlocksAsItsThreadsAndSharedMemoryAllow) {
  const kernels::cuda::DeviceInfo& info = device_->info();
  const auto blocks = [&](unsigned threads, int64_t shared_bytes) {
    return kernels::cuda::BlocksPerSm(*device_, {.block = {threads}, .shared_bytes = shared_bytes},
                                      &AddKernel);
  };
  EXPECT_EQ(*blocks(1024, 0), info.threads_per_sm / 1024);
  EXPECT_EQ(*blocks(128, info.shared_bytes_per_block), 1);
  // The system takes 1024 bytes for each block.
  EXPECT_EQ(*blocks(128, info.shared_bytes_per_sm / 4 - 1024), 4);
  EXPECT_EQ(*blocks(128, info.shared_bytes_per_sm / 4 + 128 - 1024), 3);
  EXPECT_EQ(blocks(128, info.shared_bytes_per_block + 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(DeviceTest, AnEventWaitsForTheWorkBeforeItsLastMark) {
  const auto event = *device_->CreateEvent();
  const kernels::DeviceBuffer host = *device_->AllocateHost(32 * sizeof(float));
  for (const float want : {1.0f, 2.0f}) {
    ASSERT_TRUE(Add(1.0f).ok());
    ASSERT_TRUE(device_->CopyToHost(host.data(), numbers_.data(), host.bytes()).ok());
    ASSERT_TRUE(device_->Mark(*event).ok());
    ASSERT_TRUE(device_->Wait(*event).ok());
    EXPECT_EQ(static_cast<float*>(host.data())[31], want);
  }
  EXPECT_TRUE(device_->Wait(*event).ok()) << "a second wait for one mark";
}

TEST_F(DeviceTest, GivesTheSecondsOfWhatItHasRun) {
  const auto seconds = SecondsOf(*device_, [&] { return Add(1.0f); });
  ASSERT_TRUE(seconds.ok()) << seconds.status().ToString();
  EXPECT_GT(*seconds, 0.0);
  EXPECT_LT(*seconds, 60.0);
  EXPECT_THAT(numbers_.ToHost(), Each(1.0f));
  EXPECT_EQ(SecondsOf(*device_, [] { return absl::InternalError("no"); }).status().message(), "no");
}

TEST_F(DeviceTest, ATensorMapHasRowsAsWideAsTheSwizzle) {
  const auto message = [&](int element_bytes, int32_t box_cols) {
    const absl::Status status = device_
                                    ->MakeTensorMap({.data = numbers_.data(),
                                                     .element_bytes = element_bytes,
                                                     .rank = 2,
                                                     .dims = {64, 2},
                                                     .strides = {element_bytes, 128},
                                                     .box = {box_cols, 2}})
                                    .status();
    return std::string(status.message());
  };
  const auto refusal = [](int row_bytes) {
    return "tensor map: want rows of a box of 128 bytes, as the swizzle has, got " +
           std::to_string(row_bytes);
  };
  EXPECT_EQ(message(1, 64), refusal(64));
  EXPECT_EQ(message(2, 56), refusal(112));
  EXPECT_EQ(message(2, 72), refusal(144));
  EXPECT_EQ(message(4, 16), refusal(64));
  if (device_->info().compute_capability >= 90) {
    EXPECT_EQ(message(1, 128), "");
    EXPECT_EQ(message(2, 64), "");
    EXPECT_EQ(message(4, 32), "");
  }
}

// Checks d = a . b^T and d += a . b^T for every type. Rows have gaps between them. `a` and `d`
// begin `first` elements after the start of their memory. The values are small integers, so that
// sums are exact in any order.
void CheckGemm(kernels::cuda::Device& device, int64_t m, int64_t first) {
  constexpr int64_t kN = 24, kK = 32, kLda = 40, kLdb = 48, kLdd = 32;
  const auto integers = [](int64_t size) {
    std::vector<float> values(static_cast<size_t>(size));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7 % 5) - 2.0f;
    return values;
  };
  const auto start = [&](DeviceFloats& floats, DType dtype) {
    return static_cast<char*>(floats.View({1}).raw()) + first * kernels::SizeOf(dtype);
  };
  for (const DType type : kFloats) {
    for (const DType output : {type, DType::kF32}) {
      for (const bool accumulate : {false, true}) {
        DeviceFloats a(device, type, integers(first + m * kLda));
        DeviceFloats b(device, type, integers(kN * kLdb));
        DeviceFloats d(device, output, integers(first + m * kLdd));
        ASSERT_TRUE(device
                        .Gemm({.d = start(d, output),
                               .a = start(a, type),
                               .b = b.View({kN, kLdb}).raw(),
                               .m = m,
                               .n = kN,
                               .k = kK,
                               .lda = kLda,
                               .ldb = kLdb,
                               .ldd = kLdd,
                               .type = type,
                               .output_type = output,
                               .accumulate = accumulate})
                        .ok());
        const std::vector<float> got = d.ToHost();
        for (int64_t i = 0; i < first; ++i) ASSERT_EQ(got[static_cast<size_t>(i)], d.values[i]);
        for (int64_t row = 0; row < m; ++row) {
          for (int64_t col = 0; col < kLdd; ++col) {
            const auto at = static_cast<size_t>(first + row * kLdd + col);
            float want = col < kN && !accumulate ? 0.0f : d.values[at];
            for (int64_t k = 0; k < kK && col < kN; ++k) {
              want += a.values[static_cast<size_t>(first + row * kLda + k)] *
                      b.values[static_cast<size_t>(col * kLdb + k)];
            }
            ASSERT_EQ(got[at], want) << "row " << row << " col " << col;
          }
        }
      }
    }
  }
}

// 9 and 10 rows share a GEMM algorithm (see gemm_shape.h). The matrices may begin anywhere in an
// allocation.
TEST_F(DeviceTest, MultipliesAnyNumberOfRowsThatBeginAnywhere) {
  for (const int64_t m : {5, 10, 9}) {
    for (const int64_t first : {0, 8, 2, 1}) {
      SCOPED_TRACE(::testing::Message() << m << " rows, " << first << " elements in");
      CheckGemm(*device_, m, first);
      if (HasFatalFailure()) return;
    }
  }
}

// The sums of a deep product may be cut into parts, and none of the parts is rounded to the type of
// the output. Each addition is off by at most half a unit of a float32 sum, and these errors are
// independent.
TEST_F(DeviceTest, DeepSumsAreRoundedOnceOnStore) {
  constexpr int64_t kN = 64, kK = 14336;
  for (const DType type : {DType::kF16, DType::kBF16}) {
    DeviceFloats b(*device_, type, Normal(1, kN * kK));
    for (const int64_t m : {1, 8, 64}) {
      DeviceFloats a(*device_, type, Normal(2, m * kK));
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << Name(type) << ", " << m << " rows, accumulate " << accumulate);
        DeviceFloats d(*device_, type, Normal(3, m * kN, 100.0f));
        ASSERT_TRUE(device_
                        ->Gemm({.d = d.View({1}).raw(),
                                .a = a.View({1}).raw(),
                                .b = b.View({1}).raw(),
                                .m = m,
                                .n = kN,
                                .k = kK,
                                .lda = kK,
                                .ldb = kK,
                                .ldd = kN,
                                .type = type,
                                .output_type = type,
                                .accumulate = accumulate})
                        .ok());
        const std::vector<float> got = d.ToHost();
        for (int64_t i = 0; i < m * kN; ++i) {
          const float* const row = a.values.data() + i / kN * kK;
          const float* const col = b.values.data() + i % kN * kK;
          const auto at = static_cast<size_t>(i);
          double want = accumulate ? d.values[at] : 0.0, magnitude = std::abs(want);
          for (int64_t k = 0; k < kK; ++k) {
            want += double{row[k]} * col[k];
            magnitude += std::abs(double{row[k]} * col[k]);
          }
          const double of_sum = std::sqrt(double{kK}) * Rounding(DType::kF32) * magnitude;
          ASSERT_NEAR(got[at], want, Rounding(type) * std::abs(want) + of_sum) << "element " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::testing
