#pragma once

// How the GPU benchmark takes time, and what it says of a case.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

#include "bench/gpu/bench_case.h"
#include "kernels/cuda/device.h"

namespace quire::bench {

struct MeasureOptions {
  int repeats = 50;
  double max_seconds = 3.0;  // of the device, for cases measured in turn; at least five repeats
  // Read before each sample, so that no input is left in the L2: four times the largest there is
  // that this runs on (60 MB). Reading leaves nothing to write back while the sample runs, and it
  // takes longer than the host needs to enqueue what follows.
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
// Whether there was no memory or time for it, or nothing to measure; any other error is a failure.
bool LeftOut(const absl::Status& status);
nlohmann::ordered_json ToJson(const Row& row);
std::string TableHeader();
std::string TableLine(const Row& row);
double Median(std::vector<double> values);

class Stopwatch {
 public:
  // `device` must outlive this.
  static absl::StatusOr<std::unique_ptr<Stopwatch>> Create(kernels::cuda::Device& device,
                                                           const MeasureOptions& options);

  // The device's seconds for one replay that finds the L2 full of other things.
  absl::StatusOr<double> Sample(const kernels::cuda::Recording& recording);

  // Samples of all in turn, A B C A B C; element i belongs to recording i. One round goes before
  // that does not count.
  absl::StatusOr<std::vector<std::vector<double>>> Measure(
      const std::vector<const kernels::cuda::Recording*>& recordings);

  const MeasureOptions& options() const { return options_; }

 private:
  Stopwatch(kernels::cuda::Device& device, const MeasureOptions& options)
      : device_(device), options_(options) {}

  kernels::cuda::Device& device_;
  const MeasureOptions options_;
  kernels::DeviceBuffer flush_, sink_;
};

// One way of doing something, for MeasureInTurn.
struct Variant {
  Row row;  // all but its times
  std::function<absl::Status()> enqueue;
};
// Runs each once, records it, measures all in turn and gives their rows; those whose status is not
// OK are left as they are.
std::vector<Row> MeasureInTurn(kernels::cuda::Device& device, Stopwatch& stopwatch,
                               std::vector<Variant> variants);

// Reads, copies and multiplies `bytes` and matrices of `gemm_size`; adds a row for each.
absl::StatusOr<Ceilings> MeasureCeilings(kernels::cuda::Device& device, Stopwatch& stopwatch,
                                         int64_t bytes, int64_t gemm_size, std::vector<Row>& rows);

}  // namespace quire::bench
