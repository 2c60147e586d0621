#pragma once

// Runs the op PagedAttention (kernels/ops/paged_attention.h) on tensor cores. PagedAttentionOp
// makes the plans, uploads them, and launches the kernels.
//
// In the cache, K and V of one block and one kv head are row-major [block_size, head_dim]. Softmax
// weights are rounded to the dtype of the query before the product with V, as in every tensor core
// kernel. All other arithmetic is in float32.

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/attn_params.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/matrix_instruction.h"
#include "kernels/ops/paged_attention.h"

namespace quire::kernels::cuda {

class PagedAttentionOp {
 public:
  // `device` must outlive this object, and have the instruction `prefill`, of the kernel for
  // sequences with more than one query token and more than 64 rows (attention_plan.h). Where
  // prefill_attention.cuh has no instance, kMma computes these, too. The op computes the grid sizes
  // from the device and ignores those of `options`.
  explicit PagedAttentionOp(Device& device, const AttentionPlanOptions& options = {},
                            MatrixInstruction prefill = MatrixInstruction::kMma)
      : device_(device), options_(options), prefill_(prefill) {}

  // Returns true if there is a kernel for this layer, with query and cache in `dtype`. All kernels
  // need keys and values of equal length. Only one model family has a rounded ALiBi bias, so none
  // has that.
  static bool Supports(DType dtype, const AttentionPlanKey& layer);
  // Returns true if, in addition, decodes of the layer can read shared keys once.
  static bool SharesKeys(DType dtype, const AttentionPlanKey& layer) {
    return Supports(dtype, layer) && SharedUnits::Supports(layer);
  }
  // Returns whether the kernels can read the cache of such a layer. It must have the dtype of the
  // query, or fp8_e4m3 with a head_dim of 64, 128 or 256 and a pattern without holes. block_size
  // must be 16, 32, 64 or 128.
  static bool SupportsCache(DType query_dtype, DType cache_dtype, const AttentionPlanKey& layer,
                            int64_t block_size);

  // Implements Backend::Plan. Builds a plan and enqueues its upload, or enqueues a kernel that
  // makes the plan.
  absl::StatusOr<const AttentionPlan*> Plan(const AttentionPlanArgs& args);
  // Implements Backend::AppendLaunchKey. Appends nothing if another object made the plan.
  void AppendLaunchKey(const AttentionPlan& plan, std::vector<int64_t>& key) const;

  // Enqueues the attention of `args`. `args.plan` must be the last plan for its heads and pattern.
  absl::Status Run(const PagedAttentionArgs& args);

 private:
  // The last plan of a key and its copy on the device.
  struct UploadedPlan {
    CudaAttentionPlan plan;
    bool fp8 = false;             // the plan is one for the kernels that read an fp8 cache
    bool skips_far_keys = false;  // AttentionPlanOptions
    int32_t grid_size = 0;        // the blocks that the device runs at once; 0: not asked yet
    // Plans are copied to the device from these two host buffers in turn. No event guards them.
    // During a Plan call only the previous step may still run (Backend::Plan), so the last copy
    // from the older buffer is complete. A caller with two steps in flight would overwrite it.
    std::array<DeviceBuffer, 2> staging;
    size_t last_staging = 0;
    DeviceBuffer memory;
    struct Part {
      bool prefill = false;
      bool has_wide_items = false;
      int64_t num_blocks = 0, num_ranges = 0;
      const AttentionItem* items = nullptr;
      const int32_t* block_starts = nullptr;
      AttentionQueue* queue = nullptr;  // null: each block has one range
      int64_t num_merges = 0;           // the next of `merges`
    };
    std::vector<Part> parts;
    const AttentionMerge* merges = nullptr;
    const SeenTile* tiles = nullptr;
    const SharedMember* members = nullptr;
  };

  // GrowBuffer, whose allocations num_allocations_ counts.
  absl::Status Grow(absl::StatusOr<DeviceBuffer> (Device::*allocate)(int64_t), int64_t bytes,
                    DeviceBuffer& buffer);
  // Allocates the memory of a plan of the given sizes.
  absl::Status Reserve(const PlanSizes& sizes, int64_t head_dim, UploadedPlan& uploaded);
  absl::Status GrowPartials(int64_t num_rows, int64_t head_dim);
  absl::Status Upload(UploadedPlan& uploaded);
  // Enqueues a kernel that makes the plan of a decode step.
  absl::Status PlanOnDevice(const AttentionPlanArgs& args, UploadedPlan& uploaded);
  const UploadedPlan* FindPlan(const AttentionPlan* plan) const;
  absl::Status Check(const PagedAttentionArgs& args, const UploadedPlan* uploaded) const;
  // Enqueues PrefillAttnKernel for a part of the plan.
  template <typename T>
  absl::Status LaunchPrefill(const PagedAttentionArgs& args, const UploadedPlan::Part& part,
                             const AttnParams<T>& params);
  template <typename T>
  absl::Status LaunchAll(const PagedAttentionArgs& args, const UploadedPlan& uploaded);

  Device& device_;
  const AttentionPlanOptions options_;
  const MatrixInstruction prefill_;
  std::map<std::pair<AttentionPlanKey, bool>, UploadedPlan> plans_;  // by key and `fp8`
  int64_t num_allocations_ = 0;  // an allocation changes the addresses of launches
  // The partial results of one Run call. Calls can share this memory, because the stream runs them
  // one after another.
  DeviceBuffer partials_;
};

}  // namespace quire::kernels::cuda
