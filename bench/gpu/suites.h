#pragma once

// The benchmark as a whole: which suites run on a device, in which order, and for how long.

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "bench/gpu/bench_case.h"
#include "bench/gpu/measure.h"
#include "kernels/cuda/device.h"

namespace quire::bench {

inline const std::vector<std::string> kAllSuites = {"decode",  "ragged", "merge",
                                                    "prefill", "ops",    "linear"};

struct BenchOptions {
  Size size = Size::kFull;
  std::vector<std::string> suites = kAllSuites;
  std::string filter;  // of the names of attention cases: a part of them
  double seconds = 0;  // after which no further group begins; 0: no limit
  MeasureOptions measure;
};

// What to do with a result as soon as it is there.
using Emit = std::function<void(const Row&)>;

// InvalidArgument for a suite that there is not.
absl::Status Validate(const BenchOptions& options);

// Measures the ceilings, then the suites. An error when even the ceilings cannot be; whatever goes
// wrong later is in its row.
absl::Status RunSuites(kernels::cuda::Device& device, const BenchOptions& options,
                       const Emit& emit);

// Every attention case with its prediction for an H200 and no times; asks no device.
void PredictAll(const BenchOptions& options, const Emit& emit);

// Reads names of attention cases, one a line, until the end of `in`; measures each when it is read
// and answers with its row, one line of JSON, on `out`.
absl::Status Serve(kernels::cuda::Device& device, const BenchOptions& options, std::istream& in,
                   std::ostream& out);

}  // namespace quire::bench
