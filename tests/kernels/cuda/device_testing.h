#pragma once

// Helpers of the CUDA kernel tests: a device to run on, and arrays in its memory.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

#include "kernels/cuda/device/device.h"
#include "kernels/device_buffer.h"

namespace quire::testing {

// The order in which the emulator runs the threads of a block. A GPU chooses its own order. With
// kReverse, memory that nobody has written holds large numbers instead of NaN.
enum class ThreadOrder { kForward, kReverse, kRandom };
inline constexpr ThreadOrder kAllThreadOrders[] = {ThreadOrder::kForward, ThreadOrder::kReverse,
                                                   ThreadOrder::kRandom};

// The largest error of one addition in a product of e4m3 numbers, as a share of the sum of the
// magnitudes. The emulator adds in float32. The tensor cores of an sm_90 keep about 14 bits
// (DeepSeek-V3, arXiv:2412.19437, 3.3.2).
extern const double kE4M3SumRounding;

std::unique_ptr<kernels::cuda::Device> MakeDevice(ThreadOrder order = ThreadOrder::kForward,
                                                  uint64_t seed = 1);

// An array on a device. T must be trivially copyable. The test fails if a copy fails.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(kernels::cuda::Device& device, const std::vector<T>& values)
      : DeviceArray(device, static_cast<int64_t>(values.size())) {
    EXPECT_TRUE(device.CopyToDevice(data(), values.data(), buffer_.bytes()).ok());
    EXPECT_TRUE(device.Synchronize().ok());
  }
  // Makes `size` elements and fills them with bytes 0xff, which are NaN as float, f16 and bf16. So
  // a test can see, on a GPU too, which elements a kernel does not write. Arrays of 256 MiB or more
  // stay undefined.
  DeviceArray(kernels::cuda::Device& device, int64_t size) : device_(device), size_(size) {
    auto buffer = device.Allocate(size * static_cast<int64_t>(sizeof(T)));
    EXPECT_TRUE(buffer.ok()) << buffer.status().ToString();
    if (buffer.ok()) buffer_ = std::move(*buffer);
    constexpr int64_t kMostToFill = int64_t{1} << 28;
    if (buffer_.bytes() < kMostToFill) {
      EXPECT_TRUE(device.Fill(buffer_.data(), 0xff, buffer_.bytes()).ok());
    }
  }

  T* data() { return static_cast<T*>(buffer_.data()); }

  // Waits for all enqueued work and returns the elements. A fault of a kernel fails the test.
  std::vector<T> ToHost() {
    std::vector<T> values(static_cast<size_t>(size_));
    EXPECT_TRUE(device_.CopyToHost(values.data(), buffer_.data(), buffer_.bytes()).ok());
    const absl::Status status = device_.Synchronize();
    EXPECT_TRUE(status.ok()) << status.ToString();
    return values;
  }

 private:
  kernels::cuda::Device& device_;
  int64_t size_;
  kernels::DeviceBuffer buffer_;
};

}  // namespace quire::testing
