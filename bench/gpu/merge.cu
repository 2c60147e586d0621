#include <algorithm>

#include "base/status_macros.h"
#include "bench/gpu/merge.h"
#include "bench/gpu/stream.h"
#include "kernels/cuda/attention/attn_merge.cuh"
#include "kernels/cuda/device/launch.h"

namespace quire::bench {

using kernels::DType;
using kernels::cuda::AttentionMerge;
using kernels::cuda::Bf16;
using kernels::cuda::kMergeWarps;

absl::StatusOr<std::unique_ptr<MergeCase>> MergeCase::Create(
    kernels::cuda::Device& device, const kernels::cuda::CudaAttentionPlan& plan) {
  if (plan.merges().empty()) return absl::FailedPreconditionError("the plan cuts nothing");
  std::unique_ptr<MergeCase> c(new MergeCase(device));
  c->num_merges_ = static_cast<int64_t>(plan.merges().size());
  c->num_partial_rows_ = plan.num_partial_rows();
  c->num_heads_ = plan.num_heads();
  c->num_kv_heads_ = plan.num_kv_heads();
  c->head_dim_ = plan.value_dim();
  double merged_rows = 0.0;
  for (const AttentionMerge& merge : plan.merges()) {
    c->most_rows_ = std::max(c->most_rows_, merge.num_rows);
    merged_rows += merge.num_rows;
  }
  c->work_.bytes =
      4.0 * c->num_partial_rows_ * (c->head_dim_ + 1) + 2.0 * merged_rows * c->head_dim_;

  std::vector<int32_t> starts = {0};
  for (int64_t seq = 0; seq < plan.num_seqs(); ++seq) {
    starts.push_back(starts.back() + plan.query_len(seq));
  }
  const int64_t merge_bytes = c->num_merges_ * static_cast<int64_t>(sizeof(AttentionMerge));
  const int64_t partial_count = int64_t{c->num_partial_rows_} * (c->head_dim_ + 1);
  ASSIGN_OR_RETURN(c->out_, device.Allocate(plan.num_tokens() * c->num_heads_ * c->head_dim_ * 2));
  ASSIGN_OR_RETURN(c->partials_, device.Allocate(partial_count * 4));
  ASSIGN_OR_RETURN(c->merges_, device.Allocate(merge_bytes));
  ASSIGN_OR_RETURN(c->query_starts_,
                   device.Allocate(static_cast<int64_t>(starts.size() * sizeof(int32_t))));
  RETURN_IF_ERROR(FillRandom(device, c->partials_.data(), DType::kF32, partial_count, 4.0f, 6));
  RETURN_IF_ERROR(device.CopyToDevice(c->merges_.data(), plan.merges().data(), merge_bytes));
  RETURN_IF_ERROR(
      device.CopyToDevice(c->query_starts_.data(), starts.data(), c->query_starts_.bytes()));
  RETURN_IF_ERROR(device.Synchronize());
  return c;
}

absl::Status MergeCase::Enqueue() {
  float* const partial_out = static_cast<float*>(partials_.data());
  return kernels::cuda::Launch(
      device_,
      {.grid = {static_cast<unsigned>(num_merges_),
                static_cast<unsigned>((most_rows_ + kMergeWarps - 1) / kMergeWarps)},
       .block = {32 * kMergeWarps}},
      &kernels::cuda::AttnMergeKernel<Bf16>,
      {.out = static_cast<Bf16*>(out_.data()),
       .partial_out = partial_out,
       .partial_lse = partial_out + int64_t{num_partial_rows_} * head_dim_,
       .merges = static_cast<const AttentionMerge*>(merges_.data()),
       .query_starts = static_cast<const int32_t*>(query_starts_.data()),
       .sinks = nullptr,
       .num_heads = num_heads_,
       .group = num_heads_ / num_kv_heads_,
       .head_dim = head_dim_});
}

}  // namespace quire::bench
