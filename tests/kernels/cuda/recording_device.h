#pragma once

// A device that keeps a log of launches, replays and steps in flight.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "kernels/cuda/device/forwarding_device.h"
#include "kernels/row_bucket.h"
#include "tests/kernels/cuda/device_testing.h"

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
  // The products and kernels that were first met in a recording.
  int64_t new_in_recordings = 0;
  // If set, the time that the device tells between two marks.
  std::optional<double> seconds_between;
};

class RecordingDevice final : public kernels::cuda::ForwardingDevice {
 public:
  // `log` must outlive this object, and no other device may write to it at the same time.
  explicit RecordingDevice(DeviceLog& log) : ForwardingDevice(MakeDevice()), log_(log) {}
  absl::Status LaunchKernel(const kernels::cuda::KernelLaunch& launch) override {
    log_.shared_bytes.push_back(launch.config.shared_bytes);
    CountNew(log_.kernels.insert(launch.kernel).second);
    if (!is_recording_) ++step_.launches;
    return ForwardingDevice::LaunchKernel(launch);
  }
  absl::Status Gemm(const kernels::cuda::GemmArgs& args) override {
    CountNew(log_.products.insert({kernels::RowBucket(args.m), args.n, args.k}).second);
    return ForwardingDevice::Gemm(args);
  }
  absl::StatusOr<double> SecondsBetween(const kernels::Event& begin,
                                        const kernels::Event& end) override {
    if (log_.seconds_between) return *log_.seconds_between;
    return ForwardingDevice::SecondsBetween(begin, end);
  }
  absl::StatusOr<kernels::DeviceBuffer> Allocate(int64_t bytes) override {
    ++step_.allocations;
    return ForwardingDevice::Allocate(bytes);
  }
  absl::StatusOr<kernels::DeviceBuffer> AllocateHost(int64_t bytes) override {
    ++step_.allocations;
    return ForwardingDevice::AllocateHost(bytes);
  }
  absl::Status CopyToDevice(void* destination, const void* source, int64_t bytes) override {
    ++step_.uploads;
    step_.uploaded_bytes += bytes;
    return ForwardingDevice::CopyToDevice(destination, source, bytes);
  }
  absl::StatusOr<std::unique_ptr<kernels::Recording>> Record(
      absl::FunctionRef<absl::Status()> enqueue) override {
    ++step_.recordings;
    is_recording_ = true;
    auto recording = ForwardingDevice::Record(enqueue);
    is_recording_ = false;
    return recording;
  }
  absl::Status Synchronize() override {
    ++step_.synchronizations;
    return ForwardingDevice::Synchronize();
  }
  absl::Status Mark(kernels::Event& event) override {
    log_.most_marks = std::max(log_.most_marks, ++log_.marks);
    log_.steps.push_back(std::exchange(step_, {}));
    return ForwardingDevice::Mark(event);
  }
  absl::Status Wait(const kernels::Event& event) override {
    --log_.marks;
    return ForwardingDevice::Wait(event);
  }
  absl::Status Replay(const kernels::Recording& recording) override {
    ++log_.replays;
    ++step_.replays;
    return ForwardingDevice::Replay(recording);
  }

 private:
  void CountNew(bool is_new) {
    if (is_new && is_recording_) ++log_.new_in_recordings;
  }

  DeviceLog& log_;
  HostCalls step_;
  bool is_recording_ = false;
};

}  // namespace quire::testing
