#pragma once

// The whole benchmark: the suites that run on a device, their order, and the limit on their total
// time.

#include <iosfwd>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "bench/gpu/bench_case.h"
#include "bench/gpu/measure.h"
#include "kernels/cuda/device/device.h"

namespace quire::bench {

inline const std::vector<std::string> kAllSuites = {"decode", "ragged",  "mixed", "shared", "skip",
                                                    "merge",  "prefill", "ops",   "linear"};

struct BenchOptions {
  Size size = Size::kFull;
  std::vector<std::string> suites = kAllSuites;
  std::string filter;  // only cases whose name contains this
  double seconds = 0;  // no group begins after this time; 0: no limit
  MeasureOptions measure;
};

// Returns InvalidArgument if a suite does not exist.
absl::Status Validate(const BenchOptions& options);

// Measures the ceilings, then the suites. Returns an error if the ceilings cannot be measured. The
// rows contain all later errors.
absl::Status RunSuites(kernels::cuda::Device& device, const BenchOptions& options,
                       const Emit& emit);

// Emits every chosen attention case, with its prediction for an H200 and without times. Needs no
// device.
void PredictAll(const BenchOptions& options, const Emit& emit);

// Reads names of attention cases, one on each line, until the end of `in`. Measures each case when
// its name is read, and writes its row to `out` as one line of JSON.
absl::Status Serve(kernels::cuda::Device& device, const BenchOptions& options, std::istream& in,
                   std::ostream& out);

}  // namespace quire::bench
