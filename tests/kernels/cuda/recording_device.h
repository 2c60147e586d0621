#pragma once

// An emulated device that keeps a log of launches, replays and steps in flight.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "kernels/cuda/emulator/emulated_device.h"
#include "kernels/row_bucket.h"

namespace quire::testing {

// What the host did from one mark to the next.
struct HostCalls {
  int64_t uploads = 0, uploaded_bytes = 0;
  int64_t launches = 0;  // of kernels that are not in a recording
  int64_t replays = 0;
  int64_t recordings = 0;
  int64_t allocations = 0;
  int64_t synchronizations = 0;
};

struct DeviceLog {
  // The bytes of shared memory of each launch. Attention on tensor cores holds tiles of keys and
  // values there, so it needs more than any other kernel that runs without packed weights.
  std::vector<int64_t> shared_bytes;
  // The number of marks that nobody has waited for yet, and its maximum so far.
  int64_t marks = 0, most_marks = 0;
  int64_t replays = 0;
  std::vector<HostCalls> steps;  // a runner marks the end of each step
  // The buckets of rows, the columns and the depth of each product.
  std::set<std::array<int64_t, 3>> products;
  std::set<const void*> kernels;  // that were launched
  // If set, the time that the device tells between two marks.
  std::optional<double> seconds_between;
};

class RecordingDevice final : public kernels::cuda::emulator::EmulatedDevice {
 public:
  // `log` must outlive this object, and no other device may write to it at the same time. If
  // `sums_depend_on_rows`, the order in which a product adds depends on its number of rows, as with
  // cuBLASLt.
  explicit RecordingDevice(DeviceLog& log, bool sums_depend_on_rows = false)
      : log_(log), sums_depend_on_rows_(sums_depend_on_rows) {}
  absl::Status LaunchKernel(const kernels::cuda::KernelLaunch& launch) override {
    log_.shared_bytes.push_back(launch.config.shared_bytes);
    log_.kernels.insert(launch.kernel);
    if (!is_recording_) ++step_.launches;
    return EmulatedDevice::LaunchKernel(launch);
  }
  absl::Status Gemm(const kernels::cuda::GemmArgs& args) override {
    log_.products.insert({kernels::RowBucket(args.m), args.n, args.k});
    if (!sums_depend_on_rows_ || args.k < 2) return EmulatedDevice::Gemm(args);
    // The product of the first columns is rounded to the output's dtype before the rest is added.
    kernels::cuda::GemmArgs first = args, rest = args;
    first.k = 1 + args.m % (args.k - 1);
    const int64_t first_bytes = first.k * SizeOf(args.type);
    rest.k -= first.k;
    rest.a = static_cast<const char*>(args.a) + first_bytes;
    rest.b = static_cast<const char*>(args.b) + first_bytes;
    rest.accumulate = true;
    const absl::Status status = EmulatedDevice::Gemm(first);
    return status.ok() ? EmulatedDevice::Gemm(rest) : status;
  }
  absl::StatusOr<double> SecondsBetween(const kernels::Event& begin,
                                        const kernels::Event& end) override {
    if (log_.seconds_between) return *log_.seconds_between;
    return EmulatedDevice::SecondsBetween(begin, end);
  }
  absl::StatusOr<kernels::DeviceBuffer> Allocate(int64_t bytes) override {
    ++step_.allocations;
    return EmulatedDevice::Allocate(bytes);
  }
  absl::StatusOr<kernels::DeviceBuffer> AllocateHost(int64_t bytes) override {
    ++step_.allocations;
    return EmulatedDevice::AllocateHost(bytes);
  }
  absl::Status CopyToDevice(void* destination, const void* source, int64_t bytes) override {
    ++step_.uploads;
    step_.uploaded_bytes += bytes;
    return EmulatedDevice::CopyToDevice(destination, source, bytes);
  }
  absl::StatusOr<std::unique_ptr<kernels::Recording>> Record(
      absl::FunctionRef<absl::Status()> enqueue) override {
    ++step_.recordings;
    is_recording_ = true;
    auto recording = EmulatedDevice::Record(enqueue);
    is_recording_ = false;
    return recording;
  }
  absl::Status Synchronize() override {
    ++step_.synchronizations;
    return EmulatedDevice::Synchronize();
  }
  absl::Status Mark(kernels::Event& event) override {
    log_.most_marks = std::max(log_.most_marks, ++log_.marks);
    log_.steps.push_back(std::exchange(step_, {}));
    return EmulatedDevice::Mark(event);
  }
  absl::Status Wait(const kernels::Event& event) override {
    --log_.marks;
    return EmulatedDevice::Wait(event);
  }
  absl::Status Replay(const kernels::Recording& recording) override {
    ++log_.replays;
    ++step_.replays;
    return EmulatedDevice::Replay(recording);
  }

 private:
  DeviceLog& log_;
  const bool sums_depend_on_rows_;
  HostCalls step_;
  bool is_recording_ = false;
};

}  // namespace quire::testing
