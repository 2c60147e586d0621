#pragma once

// Runs the merge of split attention by itself. In a step, the merge runs only after the attention
// kernel.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "bench/gpu/bench_case.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/device/device.h"

namespace quire::bench {

class MergeCase {
 public:
  // Prepares the merges of `plan`. The inputs are random partial results, and the output is in
  // bf16. Returns FailedPrecondition if the plan has no merges. `device` must outlive this object.
  static absl::StatusOr<std::unique_ptr<MergeCase>> Create(
      kernels::cuda::Device& device, const kernels::cuda::CudaAttentionPlan& plan);

  absl::Status Enqueue();
  const Work& work() const { return work_; }

 private:
  explicit MergeCase(kernels::cuda::Device& device) : device_(device) {}

  kernels::cuda::Device& device_;
  kernels::DeviceBuffer out_, partials_, merges_, query_starts_;
  int64_t num_merges_ = 0;
  int32_t num_partial_rows_ = 0, most_rows_ = 0;
  int32_t num_heads_ = 0, num_kv_heads_ = 0, head_dim_ = 0;
  Work work_;
};

}  // namespace quire::bench
