#pragma once

// The op PagedAttention (kernels/ops/paged_attention.h) on tensor cores: plans, uploads, launches.
//
// K and V of one (block, K|V, head) are plain [block_size, head_dim]. Weights are rounded to the
// cache's dtype before the product with V, as in every tensor core kernel; all else is float32.

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/device.h"
#include "kernels/ops/paged_attention.h"
#include "kernels/plans_by_window.h"

namespace quire::kernels::cuda {

class PagedAttentionOp {
 public:
  // `device` must outlive this. The grid is the device's, whatever `options` say.
  explicit PagedAttentionOp(Device& device, const AttentionPlanOptions& options = {})
      : device_(device), options_(options) {}

  // True if there is a kernel for query and cache of this dtype.
  static bool Supports(DType dtype, int64_t head_dim);
  // True if such a kernel can read such a cache: of the query's dtype, block_size 16|32|64|128.
  static bool SupportsCache(DType query_dtype, DType cache_dtype, int64_t block_size);

  // As Backend::Plan: valid until the second later call for its window. Enqueues the upload.
  absl::StatusOr<const AttentionPlan*> Plan(const AttentionPlanArgs& args);

  // Enqueues. `args.plan` is one of the last two plans of its window.
  absl::Status Run(const PagedAttentionArgs& args);

 private:
  // A plan and its copy on the device.
  struct UploadedPlan {
    CudaAttentionPlan plan;
    DeviceBuffer staging, memory;
    struct Part {
      const AttentionItem* items = nullptr;
      const int32_t* block_starts = nullptr;
    };
    std::vector<Part> parts;  // as plan.parts()
    const AttentionMerge* merges = nullptr;
  };

  absl::Status Upload(UploadedPlan& uploaded);
  absl::Status Check(const PagedAttentionArgs& args, const UploadedPlan* uploaded) const;
  template <typename T>
  absl::Status LaunchAll(const PagedAttentionArgs& args, const UploadedPlan& uploaded);

  Device& device_;
  const AttentionPlanOptions options_;
  PlansByWindow<UploadedPlan> plans_;
  DeviceBuffer partials_;  // of one launch and its merge; the stream keeps users apart
};

}  // namespace quire::kernels::cuda
