#pragma once

// Measures paged attention, and checks its output against the reference kernel.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "bench/gpu/bench_case.h"
#include "bench/gpu/measure.h"
#include "kernels/cuda/device/device.h"

namespace quire::bench {

class PreparedAttention;

class AttentionBench {
 public:
  // `device` and `stopwatch` must outlive this object.
  AttentionBench(kernels::cuda::Device& device, Stopwatch& stopwatch, const Ceilings& ceilings);
  ~AttentionBench();

  // Measures the cases in turn and returns a row for each. First it checks the output of each case:
  // no element may be NaN, and the outputs of the last queries must agree with those of the
  // reference kernel.
  std::vector<Row> Run(const AttentionGroup& group);
  // Measures only the merge of a case. The row has the status FailedPrecondition if the case's plan
  // has no merges.
  Row RunMerge(const AttentionCase& c);
  // Takes samples of one case. The case stays prepared until another case is measured.
  Row Sample(const AttentionCase& c);

 private:
  // Releases the case that Sample keeps. Must be called before GrowCache replaces the cache that
  // the case uses.
  void Forget();
  // Replaces the cache of bf16, or of fp8, if it is smaller than `bytes`, by one of `bytes`, filled
  // with random keys and values.
  absl::Status GrowCache(bool fp8, int64_t bytes);
  void* CacheOf(const AttentionCase& c) { return (c.fp8 ? fp8_cache_ : cache_).data(); }
  Row Describe(const AttentionCase& c) const;

  kernels::cuda::Device& device_;
  Stopwatch& stopwatch_;
  const Ceilings ceilings_;
  kernels::DeviceBuffer cache_, fp8_cache_;
  std::string sampled_;  // the name of the case in the next two members
  std::unique_ptr<PreparedAttention> prepared_;
  std::unique_ptr<kernels::Recording> recording_;
};

}  // namespace quire::bench
