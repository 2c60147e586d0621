#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/math.h"
#include "base/status_macros.h"
#include "kernels/cuda/attention/attn_merge.cuh"
#include "kernels/cuda/attention/fp8_attention.h"
#include "kernels/cuda/attention/paged_attention.cuh"
#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/attention/plan_decodes.cuh"
#include "kernels/cuda/attention/prefill_attention.h"
#include "kernels/cuda/attention/skipping_attention.h"
#include "kernels/cuda/device/grow_buffer.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/ops/check.h"

namespace quire::kernels::cuda {
namespace {

template <typename T>
struct Instance {
  int32_t head_dim;
  bool listed;
  int64_t shared_bytes;
  void (*kernel)(AttnParams<T>);
};

template <typename T, int kHeadDim, bool kListed = false>
constexpr Instance<T> kInstance = {kHeadDim, kListed, AttnShape<kHeadDim, 4>::kSharedBytes,
                                   &AttnKernel<T, kHeadDim, kListed>};

// All instances for one element type. AttentionReference computes all other shapes. Only head_dim
// 128 has an instance with lists of tiles, because the models that need lists have this head_dim.
template <typename T>
constexpr Instance<T> kInstances[] = {
    kInstance<T, 32>,  kInstance<T, 64>,  kInstance<T, 80>,  kInstance<T, 96>,
    kInstance<T, 112>, kInstance<T, 128>, kInstance<T, 256>, kInstance<T, 128, true>,
};

template <typename T>
const Instance<T>* Find(int64_t head_dim, const AttentionPattern& pattern) {
  for (const Instance<T>& instance : kInstances<T>) {
    if (instance.head_dim == head_dim && instance.listed == pattern.has_holes()) return &instance;
  }
  return nullptr;
}

// Returns true if layers of this key have kernels for a cache of `cache_dtype`, which is fp8.
bool ReadsFp8(DType cache_dtype, const AttentionPlanKey& layer) {
  return cache_dtype == DType::kF8E4M3 && !layer.pattern.has_holes() &&
         FindFp8Attention<Bf16>(layer.heads.key_dim) != nullptr;
}

constexpr int64_t kMostBlockBytes = std::numeric_limits<uint32_t>::max();  // AttnParams

constexpr int64_t kPlanAlignment = 32;  // bytes, of each array of an uploaded plan

absl::Status CheckAligned(std::string_view what, const TensorView& tensor, uintptr_t bytes) {
  const uintptr_t past = reinterpret_cast<uintptr_t>(tensor.raw()) % bytes;
  if (past == 0) return absl::OkStatus();
  return WantGot(what, absl::StrCat("memory at a multiple of ", bytes, " bytes"),
                 absl::StrCat(past, " past one"));
}

}  // namespace

bool PagedAttentionOp::Supports(DType dtype, const AttentionPlanKey& layer) {
  return (dtype == DType::kBF16 || dtype == DType::kF16) &&
         layer.heads.key_dim == layer.heads.value_dim && !layer.alibi_is_rounded &&
         Find<Bf16>(layer.heads.key_dim, layer.pattern) != nullptr;
}

bool PagedAttentionOp::SupportsCache(DType query_dtype, DType cache_dtype,
                                     const AttentionPlanKey& layer, int64_t block_size) {
  return (cache_dtype == query_dtype || ReadsFp8(cache_dtype, layer)) && block_size >= 16 &&
         block_size <= 128 && std::has_single_bit(static_cast<uint64_t>(block_size));
}

absl::Status PagedAttentionOp::Grow(absl::StatusOr<DeviceBuffer> (Device::*allocate)(int64_t),
                                    int64_t bytes, DeviceBuffer& buffer) {
  ASSIGN_OR_RETURN(const bool allocated, GrowBuffer(device_, allocate, bytes, buffer));
  if (allocated) ++num_allocations_;
  return absl::OkStatus();
}

absl::StatusOr<const AttentionPlan*> PagedAttentionOp::Plan(const AttentionPlanArgs& args) {
  const int32_t head_dim = args.heads.key_dim;
  const Instance<Bf16>* const instance = Find<Bf16>(head_dim, args.pattern);
  if (instance == nullptr || head_dim != args.heads.value_dim) {
    return WantGot(
        "plan", "a pattern, and keys and values of one head_dim, with a tensor core kernel",
        absl::StrCat(ToString(args.pattern), ", ", head_dim, " and ", args.heads.value_dim));
  }
  const bool fp8 = ReadsFp8(args.cache_dtype, args.key());
  UploadedPlan& uploaded = plans_[{args.key(), fp8}];
  const bool is_first = uploaded.grid_size == 0;
  if (is_first) {
    // Up to two blocks share a multiprocessor. Both element types need the same memory.
    const Fp8AttnInstance<Bf16>* const of_fp8 = FindFp8Attention<Bf16>(head_dim);
    const AttnFunction<Bf16> skipping = FindSkippingAttention<Bf16>(head_dim, fp8);
    uploaded.fp8 = fp8;
    uploaded.skips_far_keys =
        options_.skips_far_keys && !args.pattern.has_holes() && skipping != nullptr;
    ASSIGN_OR_RETURN(const int blocks, BlocksPerSm(device_,
                                                   {.block = {kAttnThreads},
                                                    .shared_bytes = fp8 ? of_fp8->shared_bytes
                                                                        : instance->shared_bytes},
                                                   uploaded.skips_far_keys ? skipping
                                                   : fp8                   ? of_fp8->kernel
                                                                           : instance->kernel));
    uploaded.grid_size = device_.info().num_sms * std::clamp(blocks, 1, 2);
  }
  AttentionPlanOptions options = options_;
  options.grid_size = uploaded.grid_size;
  options.skips_far_keys = uploaded.skips_far_keys;
  const bool has_prefill = prefill_ == MatrixInstruction::kWgmma && !args.pattern.has_holes() &&
                           FindPrefill<Bf16>(head_dim, fp8) != nullptr;
  // Items that skip keys of their own have few rows.
  options.wide_items =
      !args.pattern.has_holes() && !uploaded.skips_far_keys && HasWideItems(head_dim);
  options.prefill_grid_size = has_prefill ? device_.info().num_sms : 0;
  if (is_first && args.most_seqs > 0) {
    RETURN_IF_ERROR(Reserve(LargestPlan(args, options), head_dim, uploaded));
  }
  RETURN_IF_ERROR(uploaded.plan.Build(args, options));
  RETURN_IF_ERROR(uploaded.plan.decodes() == nullptr ? Upload(uploaded)
                                                     : PlanOnDevice(args, uploaded));
  RETURN_IF_ERROR(GrowPartials(uploaded.plan.num_partial_rows(), head_dim));
  return &uploaded.plan;
}

absl::Status PagedAttentionOp::Reserve(const PlanSizes& sizes, int64_t head_dim,
                                       UploadedPlan& uploaded) {
  const int64_t bytes = sizes.items * static_cast<int64_t>(sizeof(AttentionItem)) +
                        sizes.merges * static_cast<int64_t>(sizeof(AttentionMerge)) +
                        sizes.block_starts * static_cast<int64_t>(sizeof(int32_t)) +
                        sizes.members * static_cast<int64_t>(sizeof(SharedMember));
  // Each array is padded, and a part may have a queue.
  const int64_t padding = kPlanAlignment * (2 + 3 * sizes.parts);
  for (DeviceBuffer& staging : uploaded.staging) {
    RETURN_IF_ERROR(Grow(&Device::AllocateHost, bytes + padding, staging));
  }
  RETURN_IF_ERROR(Grow(&Device::Allocate, bytes + padding, uploaded.memory));
  return GrowPartials(sizes.partial_rows, head_dim);
}

// A partial row has a float32 for each element of the output, and its log-sum-exp.
absl::Status PagedAttentionOp::GrowPartials(int64_t num_rows, int64_t head_dim) {
  return Grow(&Device::Allocate, num_rows * (head_dim + 1) * SizeOf(DType::kF32), partials_);
}

absl::Status PagedAttentionOp::Upload(UploadedPlan& uploaded) {
  const CudaAttentionPlan& plan = uploaded.plan;
  const auto padded = [](int64_t count, const auto& values) {
    return base::RoundUp(count * static_cast<int64_t>(sizeof(values[0])), kPlanAlignment);
  };
  const auto draws_ranges = [&](const CudaAttentionPlan::Part& part) {
    return uploaded.skips_far_keys && !part.prefill;
  };
  // The listed tiles and the members come last. Their numbers change from step to step, and no
  // other address depends on them, because no plan has both.
  int64_t bytes = padded(std::ssize(plan.merges()), plan.merges()) +
                  padded(std::ssize(plan.tiles()), plan.tiles()) +
                  padded(std::ssize(plan.members()), plan.members());
  for (const CudaAttentionPlan::Part& part : plan.parts()) {
    bytes +=
        padded(part.room, part.items) + padded(std::ssize(part.block_starts), part.block_starts);
    if (draws_ranges(part)) bytes += kPlanAlignment;
  }
  uploaded.last_staging = 1 - uploaded.last_staging;
  DeviceBuffer& staging = uploaded.staging[uploaded.last_staging];
  RETURN_IF_ERROR(Grow(&Device::AllocateHost, bytes, staging));
  RETURN_IF_ERROR(Grow(&Device::Allocate, bytes, uploaded.memory));
  int64_t offset = 0;
  const auto place = [&]<typename V>(const std::vector<V>& values, int64_t room) {
    if (!values.empty()) {
      std::memcpy(static_cast<std::byte*>(staging.data()) + offset, values.data(),
                  values.size() * sizeof(V));
    }
    const auto* const at =
        reinterpret_cast<const V*>(static_cast<std::byte*>(uploaded.memory.data()) + offset);
    offset += padded(room, values);
    return at;
  };
  const auto place_all = [&](const auto& values) { return place(values, std::ssize(values)); };
  uploaded.parts.clear();
  for (const CudaAttentionPlan::Part& part : plan.parts()) {
    const AttentionItem* const items = place(part.items, part.room);
    const int64_t num_ranges = std::ssize(part.block_starts) - 1;
    UploadedPlan::Part& to = uploaded.parts.emplace_back();
    to = {.prefill = part.prefill,
          .has_wide_items = std::ranges::any_of(
              part.items, [](const AttentionItem& item) { return item.num_rows > kMostItemRows; }),
          .num_blocks = num_ranges,
          .num_ranges = num_ranges,
          .items = items,
          .block_starts = place_all(part.block_starts),
          .num_merges = part.num_merges};
    if (draws_ranges(part)) {
      to.num_blocks = std::min<int64_t>(num_ranges, uploaded.grid_size);
      to.queue = const_cast<AttentionQueue*>(place_all(std::vector<AttentionQueue>(1)));
    }
  }
  uploaded.merges = place_all(plan.merges());
  uploaded.tiles = place_all(plan.tiles());
  uploaded.members = place_all(plan.members());
  if (bytes == 0) return absl::OkStatus();
  return device_.CopyToDevice(uploaded.memory.data(), staging.data(), bytes);
}

absl::Status PagedAttentionOp::PlanOnDevice(const AttentionPlanArgs& args, UploadedPlan& uploaded) {
  const DecodePlan& plan = *uploaded.plan.decodes();
  const int64_t num_seqs = uploaded.plan.num_seqs();
  RETURN_IF_ERROR(
      CheckTensor("device_context_lens", args.device_context_lens, {DType::kI32}, {num_seqs}));
  const int64_t num_merges = num_seqs * plan.units.per_seq();
  const auto bytes_of = [](int64_t count, int64_t size) {
    return base::RoundUp(count * size, kPlanAlignment);
  };
  const int64_t item_bytes = bytes_of(plan.most_items, sizeof(AttentionItem));
  const int64_t merge_bytes = bytes_of(num_merges, sizeof(AttentionMerge));
  const bool draws = uploaded.skips_far_keys;
  const int64_t queue_bytes = draws ? kPlanAlignment : 0;
  RETURN_IF_ERROR(
      Grow(&Device::Allocate,
           item_bytes + merge_bytes + queue_bytes + bytes_of(plan.num_ranges + 1, sizeof(int32_t)),
           uploaded.memory));
  auto* const items = static_cast<std::byte*>(uploaded.memory.data());
  const PlanDecodesParams params = {
      .context_lens = args.device_context_lens.data<const int32_t>(),
      .items = reinterpret_cast<AttentionItem*>(items),
      .block_starts = reinterpret_cast<int32_t*>(items + item_bytes + merge_bytes + queue_bytes),
      .merges = reinterpret_cast<AttentionMerge*>(items + item_bytes),
      .queue =
          draws ? reinterpret_cast<AttentionQueue*>(items + item_bytes + merge_bytes) : nullptr,
      .pattern = args.pattern,
      .units = plan.units,
      .num_seqs = static_cast<int>(num_seqs),
      .tile_keys = AttentionTileKeys(args.heads.value_dim),
      .num_ranges = plan.num_ranges,
      .fixed_split_tiles = plan.fixed_split_tiles};
  uploaded.parts = {{.num_blocks = draws ? uploaded.grid_size : plan.num_ranges,
                     .num_ranges = plan.num_ranges,
                     .items = params.items,
                     .block_starts = params.block_starts,
                     .queue = params.queue,
                     .num_merges = num_merges}};
  uploaded.merges = params.merges;
  uploaded.tiles = nullptr;
  uploaded.members = nullptr;
  if (num_seqs == 0) return absl::OkStatus();
  // Each block finds all cuts, and its warps write a part of the units.
  constexpr int64_t kMostBlocks = 16;
  const int64_t num_blocks =
      std::min(kMostBlocks, base::CeilDiv(num_merges, int64_t{kPlanThreads}));
  return Launch(
      device_,
      {.grid = {static_cast<unsigned>(num_blocks)},
       .block = {kPlanThreads},
       .shared_bytes = PlanSharedBytes(num_seqs, plan.num_ranges, plan.fixed_split_tiles > 0)},
      plan.fixed_split_tiles > 0 ? &PlanDecodesKernel<true> : &PlanDecodesKernel<false>, params);
}

absl::Status PagedAttentionOp::Check(const PagedAttentionArgs& args,
                                     const UploadedPlan* uploaded) const {
  RETURN_IF_ERROR(Validate(args));
  if (device_.info().compute_capability < 80) {
    return WantGot("device", "compute capability 8.0 or above",
                   absl::StrCat(device_.info().compute_capability));
  }
  if (!Supports(args.query.dtype(), args.key())) {
    return WantGot(
        "query", "a dtype, head_dim, pattern and bias with a tensor core kernel",
        absl::StrCat(args.query.ToString(), ", values of ", args.out.dim(2), ", ",
                     ToString(args.pattern), args.alibi_is_rounded ? ", a rounded bias" : ""));
  }
  if (!SupportsCache(args.query.dtype(), args.kv_cache.dtype(), args.key(),
                     args.kv_cache.block_size())) {
    return WantGot("kv_cache",
                   "the query's dtype, or fp8_e4m3 with a usual head_dim, and block_size "
                   "16|32|64|128",
                   args.kv_cache.ToString());
  }
  RETURN_IF_ERROR(CheckAligned("kv_cache", args.kv_cache.keys, 16));
  RETURN_IF_ERROR(CheckAligned("kv_cache", args.kv_cache.values, 16));
  const DType cache_dtype = args.kv_cache.dtype();
  RETURN_IF_ERROR(CheckAligned("query", args.query, 16));  // as wide items copy it
  RETURN_IF_ERROR(CheckAligned("out", args.out, 8));
  const int64_t block_bytes = args.kv_cache.block_stride() * SizeOf(cache_dtype);
  if (block_bytes % 16 != 0 || block_bytes > kMostBlockBytes) {
    return WantGot("kv_cache", "blocks a multiple of 16 bytes, and less than 4 GiB, apart",
                   absl::StrCat(block_bytes, " bytes"));
  }
  if (uploaded == nullptr || uploaded->fp8 != ReadsFp8(cache_dtype, args.key())) {
    return WantGot("plan", "the last of Plan for its heads, pattern and type of cache", "another");
  }
  return uploaded->plan.CheckMatches(args);
}

template <typename T>
absl::Status PagedAttentionOp::LaunchPrefill(const PagedAttentionArgs& args,
                                             const UploadedPlan::Part& part,
                                             const AttnParams<T>& params) {
  const CacheView& cache = args.kv_cache;
  const bool fp8 = cache.dtype() == DType::kF8E4M3;
  const PrefillInstance<T>* const instance = FindPrefill<T>(cache.key_dim(), fp8);
  const auto box_keys = static_cast<int32_t>(std::min(cache.block_size(), instance->tile_keys));
  const auto map_of = [&](const TensorView& tensor) {
    return device_.MakeTensorMap(
        {.data = tensor.raw(),
         .element_bytes = 2,
         .rank = 3,
         .dims = {cache.key_dim(), cache.num_kv_heads() * cache.block_size(), cache.num_blocks()},
         .strides = {2, cache.key_dim() * 2, cache.block_stride() * 2},
         .box = {64, box_keys, 1}});
  };
  PrefillParams<T> prefill = {.keys = {}, .values = {}, .attn = params};
  if (!fp8) {
    ASSIGN_OR_RETURN(prefill.keys, map_of(cache.keys));
    ASSIGN_OR_RETURN(prefill.values, map_of(cache.values));
  }
  return Launch(device_,
                {.grid = {static_cast<unsigned>(part.num_blocks)},
                 .block = {kPrefillThreads},
                 .shared_bytes = instance->shared_bytes},
                instance->kernel, prefill);
}

template <typename T>
absl::Status PagedAttentionOp::LaunchAll(const PagedAttentionArgs& args,
                                         const UploadedPlan& uploaded) {
  const CudaAttentionPlan& plan = uploaded.plan;
  const int64_t block_size = args.kv_cache.block_size(), head_dim = plan.value_dim();
  float* const partial_out = static_cast<float*>(partials_.data());
  float* const partial_lse = partial_out + plan.num_partial_rows() * head_dim;
  const Fp8AttnInstance<T>* const fp8 = uploaded.fp8 ? FindFp8Attention<T>(head_dim) : nullptr;
  const Instance<T>* const usual = Find<T>(head_dim, args.pattern);
  const AttnFunction<T> kernel = uploaded.skips_far_keys
                                     ? FindSkippingAttention<T>(head_dim, uploaded.fp8)
                                 : fp8 != nullptr ? fp8->kernel
                                                  : usual->kernel;
  const int64_t element_bytes = SizeOf(args.kv_cache.dtype());
  const auto* const keys = args.kv_cache.keys.data<const std::byte>();
  const auto* const values = args.kv_cache.values.data<const std::byte>();
  float scale = args.soft_cap > 0.0f ? args.scale / args.soft_cap : args.scale * kLog2E;
  if (fp8 != nullptr) scale *= fp8->factor * args.kv_cache.scales.k;
  AttnParams<T> params = {
      .out = args.out.data<T>(),
      .query = args.query.data<T>(),
      .kv = keys,
      .block_table = args.block_table.data<int32_t>(),
      .query_starts = args.query_starts.data<int32_t>(),
      .slopes = args.alibi_slopes.data<float>(),
      .sinks = args.sinks.data<float>(),
      .key_norms = uploaded.skips_far_keys ? args.kv_cache.key_norms.data<float>() : nullptr,
      .items = nullptr,
      .block_starts = nullptr,
      .queue = nullptr,
      .num_ranges = 0,
      .tiles = uploaded.tiles,
      .members = uploaded.members,
      .partial_out = partial_out,
      .partial_lse = partial_lse,
      .value_offset = (values - keys) / element_bytes,
      .head_stride = block_size * head_dim,
      .block_bytes = static_cast<uint32_t>(args.kv_cache.block_stride() * element_bytes),
      .num_heads = plan.num_heads(),
      .group = plan.group(),
      .log2_block_size = std::countr_zero(static_cast<uint64_t>(block_size)),
      .max_blocks = static_cast<int>(args.block_table.dim(1)),
      .pattern = args.pattern,
      .scale = scale,
      .score_factor = std::abs(args.scale) * args.kv_cache.scales.k * kLog2E,
      .soft_cap = args.soft_cap,
      .value_factor = fp8 != nullptr ? fp8->factor * args.kv_cache.scales.v : 1.0f};
  AttnMergeParams<T> merge = {.out = params.out,
                              .partial_out = partial_out,
                              .partial_lse = partial_lse,
                              .merges = uploaded.merges,
                              .query_starts = params.query_starts,
                              .sinks = params.sinks,
                              .num_heads = params.num_heads,
                              .group = plan.group(),
                              .head_dim = plan.value_dim()};
  const auto merge_blocks =
      static_cast<unsigned>((plan.most_merge_rows() + kMergeWarps - 1) / kMergeWarps);
  for (const UploadedPlan::Part& part : uploaded.parts) {
    params.items = part.items;
    params.block_starts = part.block_starts;
    params.queue = part.queue;
    params.num_ranges = static_cast<int>(part.num_ranges);
    if (part.prefill) {
      RETURN_IF_ERROR(LaunchPrefill(args, part, params));
    } else {
      const int64_t shared_bytes = fp8 == nullptr        ? usual->shared_bytes
                                   : part.has_wide_items ? fp8->wide_shared_bytes
                                                         : fp8->shared_bytes;
      RETURN_IF_ERROR(Launch(device_,
                             {.grid = {static_cast<unsigned>(part.num_blocks)},
                              .block = {kAttnThreads},
                              .shared_bytes = shared_bytes},
                             kernel, params));
    }
    if (plan.num_partial_rows() == 0 || part.num_merges == 0) continue;
    RETURN_IF_ERROR(Launch(device_,
                           {.grid = {static_cast<unsigned>(part.num_merges), merge_blocks},
                            .block = {32 * kMergeWarps},
                            .overlaps_previous = true},
                           &AttnMergeKernel<T>, merge));
    merge.merges += part.num_merges;
  }
  return absl::OkStatus();
}

const PagedAttentionOp::UploadedPlan* PagedAttentionOp::FindPlan(const AttentionPlan* plan) const {
  for (const auto& [key, uploaded] : plans_) {
    if (&uploaded.plan == plan) return &uploaded;
  }
  return nullptr;
}

// The launches also depend on numbers that are not appended here. The caller puts the number of
// sequences and the width of the block table into the key. The heads of a plan never change.
void PagedAttentionOp::AppendLaunchKey(const AttentionPlan& plan, std::vector<int64_t>& key) const {
  const UploadedPlan* const uploaded = FindPlan(&plan);
  if (uploaded == nullptr) return;
  key.push_back(num_allocations_);
  key.push_back(uploaded->plan.num_partial_rows());
  if (const DecodePlan* const decodes = uploaded->plan.decodes(); decodes != nullptr) {
    key.push_back(decodes->most_items);
  }
  key.push_back(std::ssize(uploaded->plan.parts()));  // none if the device makes the plan
  for (const CudaAttentionPlan::Part& part : uploaded->plan.parts()) {
    key.push_back(part.prefill ? 1 : 0);
    key.push_back(part.room);
    key.push_back(part.num_merges);
  }
}

absl::Status PagedAttentionOp::Run(const PagedAttentionArgs& args) {
  const UploadedPlan* const uploaded = FindPlan(args.plan);
  RETURN_IF_ERROR(Check(args, uploaded));
  return args.query.dtype() == DType::kBF16 ? LaunchAll<Bf16>(args, *uploaded)
                                            : LaunchAll<F16>(args, *uploaded);
}

}  // namespace quire::kernels::cuda
