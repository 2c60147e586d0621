#include "tests/kernels/cuda/paged_attention_testing.h"

#include <algorithm>
#include <utility>

#include "gtest/gtest.h"

namespace quire::testing {

using kernels::cuda::AttentionPlanOptions;
using kernels::cuda::CudaAttentionPlan;
using kernels::cuda::PagedAttentionOp;

AttentionAnswer Attend(kernels::cuda::Device& device, const AttentionCase& c,
                       const AttentionBatch& batch, kernels::cuda::PrefillAttention prefill) {
  AttentionOnDevice on_device(device, batch);
  AttentionPlanOptions options;
  if (c.fixed_split_keys != 0) {
    options.fixed_split = true;
    options.fixed_split_keys = c.fixed_split_keys;
  }
  PagedAttentionOp op(device, options, prefill);
  const auto plan = op.Plan(batch.PlanArgs());
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  if (!plan.ok()) return {};
  on_device.args.plan = *plan;
  const absl::Status status = op.Run(on_device.args);
  EXPECT_TRUE(status.ok()) << status.ToString();
  const auto& cuda_plan = static_cast<const CudaAttentionPlan&>(**plan);
  AttentionAnswer answer{.out = on_device.out.ToHost(),
                         .row_tiles = {},
                         .merges = std::vector<int32_t>(c.sequences.size()),
                         .num_partial_rows = cuda_plan.num_partial_rows()};
  for (const auto& part : cuda_plan.parts()) answer.row_tiles.push_back(part.row_tiles);
  for (const auto& merge : cuda_plan.merges()) ++answer.merges[static_cast<size_t>(merge.seq)];
  return answer;
}

AttentionAnswer CheckInEveryOrder(const AttentionCase& c, const AttentionCheck& check) {
  const AttentionBatch batch(c);
  AttentionAnswer first;
  for (const ThreadOrder order : kAllThreadOrders) {
    const auto device = MakeDevice(order, check.seed);
    AttentionAnswer answer = Attend(*device, c, batch, check.prefill);
    if (order == kAllThreadOrders[0]) {
      first = std::move(answer);
      const double error = batch.Check(first.out, AttentionWeights::kRounded);
      if (check.worst != nullptr) *check.worst = std::max(*check.worst, error);
    } else {
      EXPECT_TRUE(SameBits(answer.out, first.out)) << "thread order " << static_cast<int>(order);
    }
  }
  return first;
}

}  // namespace quire::testing
