#include "bench/gpu/ops_bench.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/math.h"
#include "base/status_macros.h"
#include "bench/gpu/op_variants.h"
#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/forwarding_device.h"
#include "kernels/cuda/ops.h"
#include "kernels/lone_update.h"

namespace quire::bench {

using kernels::BlockCopy;
using kernels::DeviceBuffer;
using kernels::DType;
using kernels::PreparedSampler;
using kernels::SampleRow;
using kernels::TensorView;
using kernels::cuda::CudaWeight;
using kernels::cuda::Device;

namespace {

void AddNorm(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  const TensorView weight = arena.Random(DType::kF32, {shape.hidden});
  for (const int64_t tokens : shape.tokens) {
    const TensorView in = arena.Random(DType::kBF16, {tokens, shape.hidden});
    const TensorView out = arena.Zeroed(DType::kBF16, {tokens, shape.hidden});
    variants.Add(absl::StrCat("norm ", tokens, "x", shape.hidden),
                 {.bytes = static_cast<double>(in.num_bytes() + out.num_bytes())}, [=, &device] {
                   return kernels::cuda::Norm(device, {.out = out, .input = in, .weight = weight});
                 });
  }
}

void AddQkvPost(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  for (const int64_t tokens : shape.tokens) {
    const int64_t num_blocks = (tokens + ModelShape::kBlockSize - 1) / ModelShape::kBlockSize;
    const TensorView qkv = arena.Random(DType::kBF16, {tokens, shape.qkv()});
    const TensorView query = arena.Zeroed(DType::kBF16, {tokens, shape.num_heads, shape.head_dim});
    const TensorView cache = arena.Zeroed(
        DType::kBF16, {num_blocks, 2, shape.num_kv_heads, ModelShape::kBlockSize, shape.head_dim});
    const TensorView positions = arena.Counting<int32_t>(DType::kI32, tokens, 1);
    const TensorView slots = arena.Counting<int64_t>(DType::kI64, tokens, 1);
    const TensorView table = arena.Random(DType::kF32, {tokens, shape.head_dim / 2, 2});
    variants.Add(
        absl::StrCat("qkv_post ", tokens, " x ", shape.num_heads, "/", shape.num_kv_heads),
        {.bytes = static_cast<double>(2 * qkv.num_bytes() + table.num_bytes())}, [=, &device] {
          return kernels::cuda::QkvPost(device, {.query = query,
                                                 .kv_cache = cache,
                                                 .qkv = qkv,
                                                 .positions = positions,
                                                 .slot_mapping = slots,
                                                 .rope_table = table,
                                                 .rope_layout = kernels::RopeLayout::kHalfSplit});
        });
  }
}

void AddEmbed(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  const CudaWeight* const weight = arena.Weight(shape.vocab, shape.hidden);
  for (const int64_t tokens : shape.tokens) {
    const auto step = static_cast<int32_t>(shape.vocab / tokens);
    const TensorView ids = arena.Counting<int32_t>(DType::kI32, tokens, step);
    const TensorView out = arena.Zeroed(DType::kBF16, {tokens, shape.hidden});
    variants.Add(absl::StrCat("embed ", tokens, "x", shape.hidden),
                 {.bytes = 2.0 * static_cast<double>(out.num_bytes())}, [=, &device] {
                   return kernels::cuda::Embed(device,
                                               {.out = out, .token_ids = ids, .weight = weight});
                 });
  }
}

void AddGatherRows(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  for (const int64_t rows : shape.logits_rows) {
    const TensorView in = arena.Random(DType::kBF16, {4 * rows, shape.hidden});
    const TensorView index = arena.Counting<int32_t>(DType::kI32, rows, 4);
    const TensorView out = arena.Zeroed(DType::kBF16, {rows, shape.hidden});
    variants.Add(absl::StrCat("gather_rows ", rows, "x", shape.hidden),
                 {.bytes = 2.0 * static_cast<double>(out.num_bytes())}, [=, &device] {
                   return kernels::cuda::GatherRows(device,
                                                    {.out = out, .input = in, .rows = index});
                 });
  }
}

void AddArgmax(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  for (const int64_t rows : shape.logits_rows) {
    const TensorView values = arena.Random(DType::kF32, {rows, shape.vocab});
    const TensorView out = arena.Zeroed(DType::kI32, {rows});
    variants.Add(absl::StrCat("argmax ", rows, "x", shape.vocab),
                 {.bytes = static_cast<double>(values.num_bytes())}, [=, &device] {
                   return kernels::cuda::Argmax(device, {.out = out, .values = values});
                 });
  }
}

void AddCopyBlocks(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  const TensorView blocks =
      arena.Random(DType::kBF16, {2 * shape.copied_blocks, shape.block_elements});
  for (const int64_t count : {int64_t{1}, shape.copied_blocks}) {
    std::vector<BlockCopy> copies;
    for (int32_t i = 0; i < count; ++i) {
      copies.push_back({.source = 2 * i, .destination = 2 * i + 1});
    }
    const double bytes = 2.0 * 2.0 * static_cast<double>(count * shape.block_elements);
    variants.Add(absl::StrCat("copy_blocks ", count, "x", shape.block_elements), {.bytes = bytes},
                 [=, &device] {
                   return kernels::cuda::CopyBlocks(device, {.blocks = blocks, .copies = copies});
                 });
  }
}

// Predicted times, in microseconds (docs/evidence/gpu-predictions.md).
struct SampleKind {
  const char* name;
  kernels::DrawParams params;
  double microseconds;  // of as many rows as there are multiprocessors, or fewer
};

void AddSample(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  absl::StatusOr<std::unique_ptr<kernels::Backend>> opened =
      kernels::cuda::CreateCudaBackend(std::make_unique<kernels::cuda::ForwardingDevice>(device),
                                       {.activation_dtype = DType::kBF16});
  if (!opened.ok()) {
    return variants.Add("sample", {}, [status = opened.status()] { return status; });
  }
  const std::shared_ptr<kernels::Backend> backend = *std::move(opened);
  for (const int64_t num_rows : shape.logits_rows) {
    const TensorView logits = arena.Random(DType::kF32, {num_rows, shape.vocab}, 8.0f);
    const TensorView drawn = arena.Zeroed(DType::kI32, {num_rows});
    for (const SampleKind& kind :
         {SampleKind{"greedy", {.temperature = 0.0f}, 8}, SampleKind{"plain", {}, 35},
          SampleKind{"top_k 50", {.top_k = 50}, 60}, SampleKind{"top_p 0.95", {.top_p = 0.95f}, 65},
          SampleKind{"top_p 0.95, min_p 0.05", {.top_p = 0.95f, .min_p = 0.05f}, 65}}) {
      std::vector<SampleRow> rows(static_cast<size_t>(num_rows));
      for (size_t i = 0; i < rows.size(); ++i) {
        rows[i] = {.row = static_cast<int64_t>(i),
                   .draw = static_cast<int32_t>(i),
                   .params = kind.params,
                   .seed = i};
      }
      // A recording reads the sampler's table, so each case has a sampler of its own.
      absl::StatusOr<std::unique_ptr<PreparedSampler>> created =
          backend->PrepareSampler({.vocab_size = static_cast<int32_t>(shape.vocab),
                                   .max_rows = num_rows,
                                   .max_draws = num_rows});
      const std::shared_ptr<PreparedSampler> sampler = created.ok() ? *std::move(created) : nullptr;
      // The first call, which is not recorded, sends the rows. In the others they are the same.
      const auto sample = [=, status = created.status()]() -> absl::Status {
        RETURN_IF_ERROR(status);
        ASSIGN_OR_RETURN(const kernels::TableUpdate update, sampler->Prepare(rows));
        if (!update.changes.empty()) {
          ASSIGN_OR_RETURN(const auto sent, EnqueueLoneUpdate(*backend, update));
          RETURN_IF_ERROR(backend->Synchronize());
        }
        RETURN_IF_ERROR(backend->Sample(
            {.logits = logits, .rows = rows, .drawn = drawn, .sampler = sampler.get()}));
        std::vector<absl::StatusOr<kernels::SampledRow>> results;
        sampler->Take(results);  // so that the next call may be enqueued
        return absl::OkStatus();
      };
      const int64_t waves = base::CeilDiv(num_rows, int64_t{device.info().num_sms});
      variants.Add(absl::StrCat("sample ", num_rows, "x", shape.vocab, " ", kind.name),
                   {.bytes = static_cast<double>(logits.num_bytes())}, sample,
                   {.launch_seconds = static_cast<double>(waves) * kind.microseconds * 1e-6});
    }
  }
}

// The kernel that makes the plan of a decode step.
void AddPlan(Device& device, const ModelShape& shape, Arena& arena, OpVariants& variants) {
  for (const int64_t num_seqs : shape.logits_rows) {
    const std::vector<int32_t> ones(static_cast<size_t>(num_seqs), 1);
    const TensorView lengths = arena.Counting<int32_t>(DType::kI32, num_seqs, 64);
    const auto op = std::make_shared<kernels::cuda::PagedAttentionOp>(device);
    const auto plan = [=]() -> absl::Status {
      return op
          ->Plan({.context_lens = ones,
                  .query_lens = ones,
                  .heads = {static_cast<int32_t>(shape.num_heads),
                            static_cast<int32_t>(shape.num_kv_heads),
                            static_cast<int32_t>(shape.head_dim),
                            static_cast<int32_t>(shape.head_dim)},
                  .cache_dtype = DType::kBF16,
                  .fixed_launches = true,
                  .device_context_lens = lengths})
          .status();
    };
    variants.Add(absl::StrCat("plan of ", num_seqs, " decodes"),
                 {.bytes = static_cast<double>(lengths.num_bytes())}, plan,
                 {.launch_seconds = num_seqs <= 64 ? 6e-6 : 9e-6});
  }
}

}  // namespace

void RunOps(const OpsRun& run) {
  RunEach(run, "ops",
          {&AddNorm, &AddQkvPost, &AddEmbed, &AddGatherRows, &AddArgmax, &AddCopyBlocks, &AddSample,
           &AddPlan});
}

}  // namespace quire::bench
