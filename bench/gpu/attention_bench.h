#pragma once

// Measures paged attention, and holds what it measures against the reference kernel.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "bench/gpu/bench_case.h"
#include "bench/gpu/measure.h"
#include "kernels/cuda/device.h"

namespace quire::bench {

class PreparedAttention;

class AttentionBench {
 public:
  // `device` and `stopwatch` must outlive this.
  AttentionBench(kernels::cuda::Device& device, Stopwatch& stopwatch, const Ceilings& ceilings);
  ~AttentionBench();

  // A row a case, measured in turn. Before that each case's output is compared: no element may be
  // NaN, and the last queries must be what the reference kernel makes of them.
  std::vector<Row> Run(const AttentionGroup& group);
  // The merge of the case alone; FailedPrecondition in the row when the plan cuts nothing.
  Row RunMerge(const AttentionCase& c);
  // Samples of one case, which stays prepared until another is asked for.
  Row Sample(const AttentionCase& c);

 private:
  // What Sample keeps, before the cache under it changes.
  void Forget();
  // Random keys and values, as much of them as the largest case so far needs.
  absl::Status GrowCache(int64_t bytes);
  Row Describe(const AttentionCase& c) const;

  kernels::cuda::Device& device_;
  Stopwatch& stopwatch_;
  const Ceilings ceilings_;
  kernels::DeviceBuffer cache_;
  std::string sampled_;  // name of the case that the next two belong to
  std::unique_ptr<PreparedAttention> prepared_;
  std::unique_ptr<kernels::cuda::Recording> recording_;
};

}  // namespace quire::bench
