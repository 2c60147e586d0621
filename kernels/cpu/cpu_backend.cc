#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/check.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/cgroup.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/huge_memory.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/moe.h"
#include "kernels/cpu/packed_weight.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops/check.h"
#include "kernels/quant/dequantize.h"
#include "kernels/sampling/sampler.h"

namespace quire::kernels::cpu {
namespace {

// The number of rows in one item of cheap row-wise work. For fewer rows, waking a worker would cost
// more than it saves.
constexpr int64_t kRowsPerItem = 4;
constexpr int kMaxThreads = 1024;
// Fewer saved keys in a step are not worth the states that sharing writes and merges.
constexpr int64_t kWorthwhileSharedKeys = 1024;

absl::Status WantF32(std::string_view what, const TensorView& tensor) {
  if (tensor.dtype() == DType::kF32) return absl::OkStatus();
  return WantGot(what, "f32 activations on the CPU", Name(tensor.dtype()));
}

absl::Status CheckCache(const CacheView& kv_cache) {
  const int64_t block_size = kv_cache.block_size();
  if (block_size > 0 && block_size % kLanes == 0) return absl::OkStatus();
  return WantGot("kv_cache", "a block_size that is a multiple of 16 on the CPU",
                 kv_cache.ToString());
}

CacheLayout LayoutOf(const CacheView& kv_cache) {
  return {.keys = kv_cache.keys.data<uint8_t>(),
          .values = kv_cache.values.data<uint8_t>(),
          .dtype = kv_cache.dtype(),
          .block_stride = kv_cache.block_stride(),
          .num_kv_heads = kv_cache.num_kv_heads(),
          .block_size = kv_cache.block_size(),
          .key_dim = kv_cache.key_dim(),
          .value_dim = kv_cache.value_dim(),
          .k_scale = kv_cache.scales.k,
          .v_scale = kv_cache.scales.v};
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const KernelTable& kernels, int num_threads, bool pack_weights)
      : kernels_(kernels),
        pack_weights_(pack_weights),
        pool_(num_threads),
        linear_(kernels, pool_),
        moe_(kernels, pool_, linear_),
        attention_scratch_(num_threads) {}

  BackendInfo info() const override {
    return {.name = "cpu",
            .isa_path = kernels_.name,
            .numerics = "cpu-2",  // numerics_test has the bits that this name stands for
            .num_threads = pool_.num_threads()};
  }
  DType activation_dtype() const override { return DType::kF32; }
  bool HasFastAttention(DType, const AttentionPlanKey&, int64_t) const override { return true; }
  int64_t available_bytes() const override { return AvailableMemory(); }

  absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) override { return AllocateHuge(bytes); }
  absl::StatusOr<DeviceBuffer> AllocateHost(int64_t bytes) override { return AllocateHuge(bytes); }
  absl::Status CopyToDevice(void* destination, const void* source, int64_t bytes) override {
    // A step without logits copies 0 bytes, possibly from null, which memcpy does not allow.
    if (bytes > 0) std::memcpy(destination, source, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  absl::Status CopyToHost(void* destination, const void* source, int64_t bytes) override {
    return CopyToDevice(destination, source, bytes);
  }

  absl::StatusOr<std::unique_ptr<PreparedWeight>> PrepareWeight(
      std::span<const WeightView> parts) override;
  absl::StatusOr<std::unique_ptr<PreparedSampler>> PrepareSampler(
      const SamplerSpec& spec) override {
    return std::make_unique<sampling::Sampler>(spec, pool_.num_threads());
  }
  int64_t LeastSavedKeys(DType, const AttentionPlanKey& layer) const override {
    return layer.pattern.sees_all() ? kWorthwhileSharedKeys : 0;
  }
  absl::StatusOr<const AttentionPlan*> Plan(const AttentionPlanArgs& args) override;
  void AppendLaunchKey(const AttentionPlan&, std::vector<int64_t>&) const override {}
  absl::Status UpdateTable(const UpdateTableArgs& args) override;
  absl::Status TakeTokens(const TakeTokensArgs& args) override;
  absl::Status Embed(const EmbedArgs& args) override;
  absl::Status Norm(const NormArgs& args) override;
  absl::Status Linear(const LinearArgs& args) override;
  absl::Status Moe(const MoeArgs& args) override;
  absl::Status QkvPost(const QkvPostArgs& args) override;
  absl::Status PagedAttention(const PagedAttentionArgs& args) override;
  absl::Status GatherRows(const GatherRowsArgs& args) override;
  absl::Status CopyBlocks(const CopyBlocksArgs& args) override;
  absl::Status ShiftKeys(const ShiftKeysArgs& args) override;
  absl::Status Sample(const SampleArgs& args) override;
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    return std::make_unique<Event>();
  }
  absl::Status Mark(Event&) override { return absl::OkStatus(); }
  absl::Status Wait(const Event&) override { return absl::OkStatus(); }
  absl::StatusOr<absl::Duration> TimeBetween(const Event&, const Event&) override {
    return absl::InfiniteDuration();
  }
  absl::StatusOr<std::unique_ptr<Recording>> Record(absl::FunctionRef<absl::Status()>) override {
    return absl::UnimplementedError("the CPU records nothing");
  }
  absl::Status Replay(const Recording&) override {
    return absl::UnimplementedError("the CPU records nothing");
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  // Calls row(i) for every row. If there are enough rows, the calls are divided between threads.
  template <typename Row>
  void ForEachRow(int64_t num_rows, Row row) {
    pool_.ParallelFor(base::CeilDiv(num_rows, kRowsPerItem), [&](int64_t item, int) {
      const int64_t end = std::min(num_rows, (item + 1) * kRowsPerItem);
      for (int64_t i = item * kRowsPerItem; i < end; ++i) row(i);
    });
  }

  absl::Status CheckPlan(const PagedAttentionArgs& args, const CpuAttentionPlan& plan) const;
  void MergeSegments(const PagedAttentionArgs& args, const CpuAttentionPlan& plan);

  // Constant after construction.
  const KernelTable& kernels_;
  const bool pack_weights_;

  // Used only by the step thread.
  ThreadPool pool_;
  class Linear linear_;
  class Moe moe_;
  std::map<AttentionPlanKey, CpuAttentionPlan> plans_;
  std::vector<std::vector<float>> attention_scratch_;  // one per thread
  std::vector<AttentionQuery> attention_queries_;      // of the plan's sharers
  std::vector<float> partials_;
};

absl::StatusOr<std::unique_ptr<PreparedWeight>> CpuBackend::PrepareWeight(
    std::span<const WeightView> parts) {
  if (parts.empty()) return WantGot("parts", "one weight at least", "none");
  for (const WeightView& part : parts) {
    RETURN_IF_ERROR(ValidateWeight(part));
    if (part.cols != parts[0].cols) {
      return WantGot("parts", absl::StrCat(parts[0].cols, " cols"), absl::StrCat(part.cols));
    }
  }
  ASSIGN_OR_RETURN(std::unique_ptr<PackedWeight> weight,
                   PackedWeight::Create(parts, pack_weights_));
  RETURN_IF_ERROR(linear_.Reserve(*weight));
  return weight;
}

absl::StatusOr<const AttentionPlan*> CpuBackend::Plan(const AttentionPlanArgs& args) {
  CpuAttentionPlan& plan = plans_[args.key()];
  RETURN_IF_ERROR(plan.Build(args, pool_.num_threads()));
  return &plan;
}

absl::Status CpuBackend::UpdateTable(const UpdateTableArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  const auto* changes = reinterpret_cast<const TableChange*>(args.changes.data<const int32_t>());
  for (int64_t i = 0; i < args.changes.dim(0); ++i) {
    const auto [index, value] = changes[i];
    if (index >= 0 && index < args.table.dim(0)) args.table.data<int32_t>()[index] = value;
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::TakeTokens(const TakeTokensArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  const int32_t* sources = args.sources.data<int32_t>();
  for (int64_t i = 0; i < args.token_ids.dim(0); ++i) {
    if (sources[i] == -1) continue;
    if (sources[i] < 0 || sources[i] >= args.drawn.dim(0)) {
      return WantGot("sources", absl::StrCat("-1, or tokens of ", args.drawn.dim(0)),
                     absl::StrCat(sources[i]));
    }
    args.token_ids.data<int32_t>()[i] = args.drawn.data<int32_t>()[sources[i]];
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::Embed(const EmbedArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  RETURN_IF_ERROR(WantF32("out", args.out));
  const auto& weight = static_cast<const PackedWeight&>(*args.weight);
  const int64_t cols = weight.cols();
  const int32_t* ids = args.token_ids.data<int32_t>();
  for (int64_t i = 0; i < args.out.dim(0); ++i) {
    if (ids[i] >= 0 && ids[i] < weight.rows()) continue;
    return WantGot("token_ids", absl::StrCat("ids in [0, ", weight.rows(), ")"),
                   absl::StrCat(ids[i]));
  }
  ForEachRow(args.out.dim(0), [&](int64_t i) {
    float* out = args.out.data<float>() + i * cols;
    linear_.UnpackRow(weight, ids[i], out);
    if (args.scale == 1.0f) return;
    for (int64_t k = 0; k < cols; ++k) out[k] *= args.scale;
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::Norm(const NormArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  RETURN_IF_ERROR(WantF32("input", args.input));
  const int64_t hidden = args.input.dim(1);
  ForEachRow(args.input.dim(0), [&](int64_t i) {
    kernels_.norm(
        {.input = args.input.data<float>() + i * hidden,
         .out = args.out.data<float>() + i * hidden,
         .weight = args.weight.data<float>(),
         .bias = args.bias.data<float>(),
         .residual = args.residual.empty() ? nullptr : args.residual.data<float>() + i * hidden,
         .count = hidden,
         .eps = args.eps,
         .layer_norm = args.kind == NormKind::kLayerNorm});
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::Linear(const LinearArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  RETURN_IF_ERROR(WantF32("input", args.input));
  RETURN_IF_ERROR(WantF32("out", args.out));
  linear_.Run(args);
  return absl::OkStatus();
}

absl::Status CpuBackend::Moe(const MoeArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  RETURN_IF_ERROR(WantF32("input", args.input));
  moe_.Run(args);
  return absl::OkStatus();
}

absl::Status CpuBackend::QkvPost(const QkvPostArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  RETURN_IF_ERROR(WantF32("query", args.query));
  RETURN_IF_ERROR(CheckCache(args.kv_cache));
  const CacheLayout cache = LayoutOf(args.kv_cache);
  if (std::max(cache.key_dim, cache.value_dim) > 256) {
    return WantGot("kv_cache", "keys and values of at most 256", args.kv_cache.ToString());
  }
  const bool rope = args.rope_layout != RopeLayout::kNone;
  const int64_t half = rope ? args.rope_table.dim(1) : 0;
  const int64_t num_slots = args.kv_cache.num_blocks() * cache.block_size;
  const int64_t num_positions = NumPositions(args);
  for (int64_t i = 0; i < args.query.dim(0); ++i) {
    const int64_t slot = args.slot_mapping.data<int64_t>()[i];
    if (slot < 0 || slot >= num_slots) {
      return WantGot("slot_mapping", absl::StrCat("slots in [0, ", num_slots, ")"),
                     absl::StrCat(slot));
    }
    if (!rope && args.query_scales.empty()) continue;
    const int32_t position = args.positions.data<int32_t>()[i];
    if (position < 0 || position >= num_positions) {
      return WantGot("positions", absl::StrCat("positions in [0, ", num_positions, ")"),
                     absl::StrCat(position));
    }
  }
  const int64_t num_heads = args.query.dim(1);
  const QkNorm& norm = args.qk_norm;
  ForEachRow(args.query.dim(0), [&](int64_t i) {
    kernels_.qkv_post(
        {.cache = cache,
         .qkv = args.qkv.data<float>() + i * args.qkv.dim(1),
         .query = args.query.data<float>() + i * num_heads * cache.key_dim,
         .cos_sin =
             rope ? args.rope_table.data<float>() + args.positions.data<int32_t>()[i] * half * 2
                  : nullptr,
         .query_scale = args.query_scales.empty()
                            ? 1.0f
                            : args.query_scales.data<float>()[args.positions.data<int32_t>()[i]],
         .value_scale = args.value_scale,
         .slot = args.slot_mapping.data<int64_t>()[i],
         .num_heads = num_heads,
         .rope_dim = 2 * half,
         .interleaved = args.rope_layout == RopeLayout::kInterleaved,
         .bias = args.bias.data<float>(),
         .clip = args.clip,
         .query_norm = norm.query_weight.data<float>(),
         .key_norm = norm.key_weight.data<float>(),
         .norm_by_head = !norm.query_weight.empty() && norm.query_weight.dim(0) == cache.key_dim,
         .layer_norm = norm.kind == NormKind::kLayerNorm,
         .norm_eps = norm.eps});
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::CheckPlan(const PagedAttentionArgs& args,
                                   const CpuAttentionPlan& plan) const {
  RETURN_IF_ERROR(plan.CheckMatches(args));
  const int32_t* starts = args.query_starts.data<int32_t>();
  for (int64_t seq = 0; seq < plan.num_seqs(); ++seq) {
    if (starts[seq] < 0 || starts[seq] + plan.query_len(seq) > args.query.dim(0)) {
      return WantGot(
          "query_starts",
          absl::StrCat("rows of ", plan.query_len(seq), " tokens within ", args.query.dim(0)),
          absl::StrCat(starts[seq]));
    }
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::PagedAttention(const PagedAttentionArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  RETURN_IF_ERROR(WantF32("query", args.query));
  RETURN_IF_ERROR(CheckCache(args.kv_cache));
  const auto& plan = static_cast<const CpuAttentionPlan&>(*args.plan);
  RETURN_IF_ERROR(CheckPlan(args, plan));
  const AttentionCall call{.cache = LayoutOf(args.kv_cache),
                           .query = args.query.data<float>(),
                           .out = args.out.data<float>(),
                           .slopes = args.alibi_slopes.data<float>(),
                           .alibi_is_rounded = args.alibi_is_rounded,
                           .sinks = args.sinks.data<float>(),
                           .num_heads = args.query.dim(1),
                           .scale = args.scale,
                           .soft_cap = args.soft_cap,
                           .pattern = args.pattern};
  const auto scratch_floats =
      static_cast<size_t>(AttentionScratchFloats(plan.max_rows(), call.cache.value_dim));
  for (std::vector<float>& scratch : attention_scratch_) {
    if (scratch.size() < scratch_floats) scratch.resize(scratch_floats);
  }
  if (partials_.size() < static_cast<size_t>(plan.partial_floats())) {
    partials_.resize(static_cast<size_t>(plan.partial_floats()));
  }
  attention_queries_.clear();
  for (const int32_t seq : plan.sharers()) {
    attention_queries_.push_back(
        {.row = args.query_starts.data<int32_t>()[seq], .position = plan.context_len(seq) - 1});
  }
  const auto& items = plan.items();
  pool_.ParallelFor(static_cast<int64_t>(items.size()), [&](int64_t i, int thread) {
    const CpuAttentionPlan::Item& item = items[i];
    kernels_.attention(
        call,
        {.block_table = args.block_table.data<int32_t>() + item.seq * args.block_table.dim(1),
         .first_row = args.query_starts.data<int32_t>()[item.seq] + item.first_query,
         .first_position = plan.context_len(item.seq) - plan.query_len(item.seq) + item.first_query,
         .num_queries = item.num_queries,
         .queries = item.first_sharer < 0 ? nullptr : attention_queries_.data() + item.first_sharer,
         .kv_head = item.kv_head,
         .segment_begin = item.segment_begin,
         .segment_end = item.segment_end,
         .tiles = item.first_tile < 0 ? nullptr : plan.tiles().data() + item.first_tile,
         .num_tiles = item.num_tiles,
         .partials = item.partials < 0 ? nullptr : partials_.data() + item.partials,
         .scratch = attention_scratch_[thread].data()});
  });
  if (!plan.merges().empty()) MergeSegments(args, plan);
  return absl::OkStatus();
}

void CpuBackend::MergeSegments(const PagedAttentionArgs& args, const CpuAttentionPlan& plan) {
  const int64_t value_dim = plan.value_dim();
  const int64_t group = plan.group();
  const auto& merges = plan.merges();
  const auto states_of = [&](const CpuAttentionPlan::States& states, int64_t row) -> SegmentStates {
    return {.first = partials_.data() + states.partials + row * StateFloats(value_dim),
            .stride = states.stride,
            .count = states.num_segments};
  };
  pool_.ParallelFor(static_cast<int64_t>(merges.size()), [&](int64_t i, int thread) {
    const CpuAttentionPlan::Merge& merge = merges[i];
    const int64_t rows = merge.num_queries * group;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t token =
          args.query_starts.data<int32_t>()[merge.seq] + merge.first_query + row / group;
      const int64_t head = merge.kv_head * group + row % group;
      kernels_.attention_merge(
          {.shared = states_of(merge.shared, row),
           .own = states_of(merge.own, row),
           .first_segment = merge.first_segment,
           .out = args.out.data<float>() + (token * plan.num_heads() + head) * value_dim,
           .value_dim = value_dim,
           .v_scale = args.kv_cache.scales.v,
           .sink = args.sinks.empty() ? nullptr : args.sinks.data<float>() + head,
           .scratch = attention_scratch_[thread].data()});
    }
  });
}

absl::Status CpuBackend::GatherRows(const GatherRowsArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  const int64_t row_bytes = args.input.dim(1) * SizeOf(args.input.dtype());
  const int32_t* rows = args.rows.data<int32_t>();
  for (int64_t i = 0; i < args.out.dim(0); ++i) {
    if (rows[i] < 0 || rows[i] >= args.input.dim(0)) {
      return WantGot("rows", absl::StrCat("rows in [0, ", args.input.dim(0), ")"),
                     absl::StrCat(rows[i]));
    }
  }
  for (int64_t i = 0; i < args.out.dim(0); ++i) {
    std::memcpy(args.out.data<uint8_t>() + i * row_bytes,
                args.input.data<uint8_t>() + rows[i] * row_bytes, static_cast<size_t>(row_bytes));
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::CopyBlocks(const CopyBlocksArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  if (args.copies.empty()) return absl::OkStatus();
  const int64_t block_bytes = args.blocks.dim(1) * SizeOf(args.blocks.dtype());
  auto* data = args.blocks.data<uint8_t>();
  for (const BlockCopy& copy : args.copies) {
    std::memcpy(data + copy.destination * block_bytes, data + copy.source * block_bytes,
                static_cast<size_t>(block_bytes));
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::ShiftKeys(const ShiftKeysArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  RETURN_IF_ERROR(CheckCache(args.kv_cache));
  const CacheLayout cache = LayoutOf(args.kv_cache);
  const int64_t half = args.rope_table.dim(1);
  pool_.ParallelFor(static_cast<int64_t>(args.shifts.size()), [&](int64_t i, int) {
    const KeyShift& shift = args.shifts[i];
    kernels_.shift_keys({.cache = cache,
                         .cos_sin = args.rope_table.data<float>() + shift.distance * half * 2,
                         .inverse_scale = 1.0f / args.table_scale,
                         .block = shift.block,
                         .rope_dim = 2 * half,
                         .interleaved = args.rope_layout == RopeLayout::kInterleaved});
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::Sample(const SampleArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  static_cast<sampling::Sampler*>(args.sampler)
      ->Run(args, [this](int64_t n, ThreadPool::Loop loop) { pool_.ParallelFor(n, loop); });
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuBackendOptions& options) {
  ASSIGN_OR_RETURN(const KernelTable* kernels, SelectKernels(options.isa));
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return WantGot("num_threads", absl::StrCat("0 to ", kMaxThreads),
                   absl::StrCat(options.num_threads));
  }
  const int num_threads = options.num_threads == 0 ? UsablePhysicalCores() : options.num_threads;
  return std::make_unique<CpuBackend>(*kernels, num_threads, options.pack_weights);
}

}  // namespace quire::kernels::cpu
