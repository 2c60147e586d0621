#pragma once

// Measures times for the GPU benchmark, and makes its rows.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

#include "bench/gpu/bench_case.h"
#include "kernels/cuda/device/device.h"

namespace quire::bench {

struct MeasureOptions {
  int repeats = 50;
  // The device time after which no new round begins. A round takes one sample of each of the cases
  // that are measured in turn. At least five rounds always run, unless `repeats` is smaller.
  double max_seconds = 3.0;
  // The number of bytes that are read before each sample, so that no input is left in the L2. It is
  // more than four times the largest L2 that the benchmark runs on (60 MB). The bytes are only
  // read, so that the L2 need not write any of them back during the sample. The read also takes
  // longer than the host needs to enqueue the sample.
  int64_t flush_bytes = int64_t{256} << 20;
};

// One line of the results.
struct Row {
  std::string suite, name;
  absl::Status status;
  Work work;
  double floor_seconds = 0.0;
  double predicted_seconds = 0.0;
  std::vector<double> seconds;
  nlohmann::ordered_json more = nlohmann::ordered_json::object();  // the suite's own fields
};

// A function that receives each row as soon as the row is complete.
using Emit = std::function<void(const Row&)>;

// Returns true if `status` means that a case was skipped: there was too little memory or time, or
// there was nothing to measure. Any other error is a failure.
bool LeftOut(const absl::Status& status);
nlohmann::ordered_json ToJson(const Row& row);
std::string TableHeader();
std::string TableLine(const Row& row);
double Median(std::vector<double> values);

class Stopwatch {
 public:
  // `device` must outlive the stopwatch.
  static absl::StatusOr<std::unique_ptr<Stopwatch>> Create(kernels::cuda::Device& device,
                                                           const MeasureOptions& options);

  // Fills the L2 with other data, replays `recording` once, and returns the seconds that the replay
  // takes on the device.
  absl::StatusOr<double> Sample(const kernels::Recording& recording);

  // Takes samples of all recordings in turn: A B C A B C. Element i of the result has the samples
  // of recording i. The first round is not counted.
  absl::StatusOr<std::vector<std::vector<double>>> Measure(
      const std::vector<const kernels::Recording*>& recordings);

  const MeasureOptions& options() const { return options_; }

 private:
  Stopwatch(kernels::cuda::Device& device, const MeasureOptions& options)
      : device_(device), options_(options) {}

  kernels::cuda::Device& device_;
  const MeasureOptions options_;
  kernels::DeviceBuffer flush_, sink_;
};

// One of several ways to do the same work, for MeasureInTurn.
struct Variant {
  Row row;  // everything except the times
  std::function<absl::Status()> enqueue;
};
// Runs each variant once, makes a Recording of it, measures all recordings in turn (see
// Stopwatch::Measure), and returns the rows. A variant whose row already has an error is skipped.
// If a variant fails, its row gets the error.
std::vector<Row> MeasureInTurn(kernels::cuda::Device& device, Stopwatch& stopwatch,
                               std::vector<Variant> variants);

// Measures a read and a copy of `bytes` bytes, and a GEMM whose m, n and k are `gemm_size`. Adds a
// row for each to `rows`.
absl::StatusOr<Ceilings> MeasureCeilings(kernels::cuda::Device& device, Stopwatch& stopwatch,
                                         int64_t bytes, int64_t gemm_size, std::vector<Row>& rows);

}  // namespace quire::bench
