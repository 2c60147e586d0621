#include "bench/gpu/attention_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "bench/gpu/merge.h"
#include "bench/gpu/stream.h"
#include "kernels/alibi_slopes.h"
#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/device/forwarding_device.h"
#include "kernels/cuda/ops.h"
#include "kernels/quant/float16.h"

namespace quire::bench {

using kernels::AttentionPlan;
using kernels::DeviceBuffer;
using kernels::DType;
using kernels::PagedAttentionArgs;
using kernels::TensorView;
using kernels::cuda::CudaAttentionPlan;
using kernels::cuda::Device;
using kernels::cuda::MatrixInstruction;

namespace {

// The reference kernel is slow, so it computes at most this many of the last sequence's queries.
constexpr int32_t kCheckedQueries = 16;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename T>
absl::StatusOr<DeviceBuffer> Upload(Device& device, const std::vector<T>& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  ASSIGN_OR_RETURN(DeviceBuffer buffer, device.Allocate(bytes));
  RETURN_IF_ERROR(device.CopyToDevice(buffer.data(), values.data(), bytes));
  RETURN_IF_ERROR(device.Synchronize());
  return buffer;
}

}  // namespace

// No launch overlaps another.
class ApartDevice final : public kernels::cuda::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  absl::Status LaunchKernel(const kernels::cuda::KernelLaunch& launch) override {
    kernels::cuda::KernelLaunch apart = launch;
    apart.config.overlaps_previous = false;
    return ForwardingDevice::LaunchKernel(apart);
  }
};

// A case with its plan and all its inputs except the cache.
class PreparedAttention {
 public:
  static absl::StatusOr<std::unique_ptr<PreparedAttention>> Create(Device& device,
                                                                   const AttentionCase& c,
                                                                   void* cache) {
    if (c.wgmma && !HasInstruction(device.info(), MatrixInstruction::kWgmma)) {
      return absl::FailedPreconditionError("wgmma needs compute capability 9.0");
    }
    std::unique_ptr<PreparedAttention> prepared(new PreparedAttention(device, c));
    RETURN_IF_ERROR(prepared->Prepare(cache));
    return prepared;
  }

  absl::Status Enqueue() { return op_.Run(args_); }
  const CudaAttentionPlan& plan() const {
    return static_cast<const CudaAttentionPlan&>(*args_.plan);
  }
  double plan_seconds() const { return plan_seconds_; }

  // Runs the case and compares its last queries with the reference kernel. Puts the largest ratio
  // of an error to its bound into `more`. Returns Internal if an element is NaN or if a compared
  // element differs too much.
  absl::Status Check(nlohmann::ordered_json& more);

 private:
  PreparedAttention(Device& device, const AttentionCase& c)
      : device_(device),
        c_(c),
        apart_(device),
        op_(c.apart ? apart_ : device, {.shares_keys = c.together, .skips_far_keys = c.skips},
            c.wgmma ? MatrixInstruction::kWgmma : MatrixInstruction::kMma) {}

  absl::Status Prepare(void* cache);
  absl::Status Plan();
  // Returns the largest allowed difference between an element of the output and the element `want`
  // of the reference kernel.
  double Bound(double want) const;

  Device& device_;
  const AttentionCase c_;
  ApartDevice apart_;
  kernels::cuda::PagedAttentionOp op_;
  DeviceBuffer out_, query_, block_table_, context_lens_, query_starts_, slopes_, key_norms_;
  PagedAttentionArgs args_;
  double plan_seconds_ = 0.0;
};

absl::Status PreparedAttention::Prepare(void* cache) {
  const auto num_seqs = static_cast<int64_t>(c_.context_lens.size());
  std::vector<int32_t> starts = {0};
  for (const int32_t query_len : c_.query_lens) starts.push_back(starts.back() + query_len);
  const int64_t num_tokens = starts.back();
  const int64_t elements = num_tokens * c_.num_heads * c_.head_dim;
  const int64_t num_blocks = NumBlocks(c_);
  const int32_t longest = *std::max_element(c_.context_lens.begin(), c_.context_lens.end());
  const int64_t max_blocks = (longest + c_.block_size - 1) / c_.block_size;

  // The blocks are in random order, as in a server that has run for a while.
  std::vector<int32_t> order(static_cast<size_t>(num_blocks));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
  std::vector<int32_t> table(static_cast<size_t>(num_seqs * max_blocks), 0);
  auto next = order.begin();
  for (int64_t seq = 0; seq < num_seqs; ++seq) {
    const int64_t blocks =
        (c_.context_lens[static_cast<size_t>(seq)] + c_.block_size - 1) / c_.block_size;
    const auto row = table.begin() + seq * max_blocks;
    std::copy_n(next, blocks, row);
    std::copy_n(table.begin(), c_.prefix / c_.block_size, row);  // those of the first sequence
    next += blocks;
  }

  ASSIGN_OR_RETURN(out_, device_.Allocate(elements * 2));
  ASSIGN_OR_RETURN(query_, device_.Allocate(elements * 2));
  RETURN_IF_ERROR(FillRandom(device_, query_.data(), DType::kBF16, elements, kQueryAmplitude, 4));
  ASSIGN_OR_RETURN(block_table_, Upload(device_, table));
  ASSIGN_OR_RETURN(context_lens_, Upload(device_, c_.context_lens));
  ASSIGN_OR_RETURN(query_starts_, Upload(device_, starts));
  args_.out = TensorView(out_.data(), DType::kBF16, {num_tokens, c_.num_heads, c_.head_dim});
  args_.query = TensorView(query_.data(), DType::kBF16, {num_tokens, c_.num_heads, c_.head_dim});
  args_.kv_cache =
      kernels::CacheView(cache, c_.fp8 ? DType::kF8E4M3 : DType::kBF16, num_blocks, c_.num_kv_heads,
                         c_.block_size, c_.head_dim, c_.head_dim, c_.layers * BlockElements(c_));
  args_.block_table = TensorView(block_table_.data(), DType::kI32, {num_seqs, max_blocks});
  args_.context_lens = TensorView(context_lens_.data(), DType::kI32, {num_seqs});
  args_.query_starts = TensorView(query_starts_.data(), DType::kI32, {num_seqs + 1});
  if (c_.alibi) {
    ASSIGN_OR_RETURN(slopes_, Upload(device_, kernels::AlibiSlopes(c_.num_heads)));
    args_.alibi_slopes = TensorView(slopes_.data(), DType::kF32, {c_.num_heads});
  }
  if (c_.skips) {
    ASSIGN_OR_RETURN(key_norms_,
                     Upload(device_, std::vector<float>(static_cast<size_t>(c_.num_kv_heads),
                                                        LargestKeyNorm(c_.head_dim))));
    args_.kv_cache.key_norms = TensorView(key_norms_.data(), DType::kF32, {c_.num_kv_heads});
  }
  args_.scale = 1.0f / std::sqrt(static_cast<float>(c_.head_dim));
  return Plan();
}

absl::Status PreparedAttention::Plan() {
  constexpr int kRepeats = 9;
  std::vector<double> seconds;
  std::vector<int32_t> seqs(c_.context_lens.size());
  std::iota(seqs.begin(), seqs.end(), 0);
  std::vector<kernels::SharedKeys> shared;
  if (c_.prefix > 0) {
    shared = {{.count = static_cast<int32_t>(seqs.size()), .num_keys = c_.prefix}};
  }
  for (int i = 0; i < kRepeats; ++i) {
    const double begin = Now();
    ASSIGN_OR_RETURN(args_.plan,
                     op_.Plan({.context_lens = c_.context_lens,
                               .query_lens = c_.query_lens,
                               .heads = {c_.num_heads, c_.num_kv_heads, c_.head_dim, c_.head_dim},
                               .cache_dtype = args_.kv_cache.dtype(),
                               .shared_seqs = seqs,
                               .shared_keys = shared}));
    seconds.push_back(Now() - begin);
    RETURN_IF_ERROR(device_.Synchronize());  // the next Plan() reuses the upload buffer
  }
  plan_seconds_ = Median(seconds);
  return absl::OkStatus();
}

// The bound is derived as in the kernel's test (tests/kernels/cuda/attention_testing.cc). Each
// weight and each output is rounded to bf16 once. Float32 errors in the scores and in the sums also
// change the weights and their sum. All values are in (-1, 1), so the weighted average of their
// magnitudes is below 1.
double PreparedAttention::Bound(double want) const {
  constexpr double kEpsilon = 0x1p-23, kRounding = 0x1p-8;
  const double largest_score =
      c_.head_dim * double{kQueryAmplitude} * kCacheAmplitude * args_.scale;
  // The bound assumes ALiBi biases of -100 and above. A key with a lower bias has practically no
  // weight, so the error of its score does not matter.
  const double score_error =
      (c_.head_dim + 2) * kEpsilon * largest_score + 4 * kEpsilon * (largest_score + 100);
  const double sums = (1.1 * c_.context_lens.back() + 64) * kEpsilon;
  return kRounding + 2 * (2 * score_error + sums) + 2 * kRounding * std::abs(want);
}

absl::Status PreparedAttention::Check(nlohmann::ordered_json& more) {
  RETURN_IF_ERROR(device_.Fill(out_.data(), 0xff, out_.bytes()));  // unwritten elements stay NaN
  RETURN_IF_ERROR(Enqueue());
  std::vector<uint16_t> out(static_cast<size_t>(out_.bytes() / 2));
  RETURN_IF_ERROR(device_.CopyToHost(out.data(), out_.data(), out_.bytes()));
  RETURN_IF_ERROR(device_.Synchronize());
  const auto nan = std::find_if(out.begin(), out.end(),
                                [](uint16_t bits) { return std::isnan(kernels::Bf16ToF32(bits)); });
  if (nan != out.end()) {
    return absl::InternalError(absl::StrCat("element ", nan - out.begin(), " is NaN"));
  }

  const int64_t num_seqs = args_.block_table.dim(0), num_tokens = args_.query.dim(0);
  const int64_t checked = std::min(kCheckedQueries, c_.query_lens.back());
  const int64_t row = int64_t{c_.num_heads} * c_.head_dim;
  ASSIGN_OR_RETURN(const DeviceBuffer reference, device_.Allocate(checked * row * 2));
  ASSIGN_OR_RETURN(const DeviceBuffer starts,
                   Upload(device_, std::vector<int32_t>{0, static_cast<int32_t>(checked)}));
  const AttentionPlan no_plan;
  PagedAttentionArgs args = args_;
  args.out = TensorView(reference.data(), DType::kBF16, {checked, c_.num_heads, c_.head_dim});
  args.query = args_.query.Rows(num_tokens - checked, checked);
  args.block_table = args_.block_table.Rows(num_seqs - 1, 1);
  args.context_lens = args_.context_lens.Rows(num_seqs - 1, 1);
  args.query_starts = TensorView(starts.data(), DType::kI32, {2});
  args.plan = &no_plan;
  RETURN_IF_ERROR(kernels::cuda::AttentionReference(device_, args));
  std::vector<uint16_t> want(static_cast<size_t>(checked * row));
  RETURN_IF_ERROR(device_.CopyToHost(want.data(), reference.data(), reference.bytes()));
  RETURN_IF_ERROR(device_.Synchronize());

  double worst = 0.0, largest = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double wanted = kernels::Bf16ToF32(want[i]);
    const double got = kernels::Bf16ToF32(out[out.size() - want.size() + i]);
    largest = std::max(largest, std::abs(wanted));
    const double error = std::abs(got - wanted) / Bound(wanted);
    if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
  }
  more["error_of_bound"] = worst;
  more["largest_output"] = largest;
  if (worst > 1.0) {
    return absl::InternalError(
        absl::StrFormat("the output is off by %.3g times what rounding may do", worst));
  }
  return absl::OkStatus();
}

AttentionBench::AttentionBench(Device& device, Stopwatch& stopwatch, const Ceilings& ceilings)
    : device_(device), stopwatch_(stopwatch), ceilings_(ceilings) {}

AttentionBench::~AttentionBench() = default;

void AttentionBench::Forget() {
  sampled_.clear();
  recording_.reset();
  prepared_.reset();
}

absl::Status AttentionBench::GrowCache(bool fp8, int64_t bytes) {
  DeviceBuffer& cache = fp8 ? fp8_cache_ : cache_;
  if (cache.bytes() >= bytes) return absl::OkStatus();
  // The old cache is released first, because there may be no memory for both.
  cache = DeviceBuffer();
  ASSIGN_OR_RETURN(cache, device_.Allocate(bytes));
  const DType dtype = fp8 ? DType::kF8E4M3 : DType::kBF16;
  return FillRandom(device_, cache.data(), dtype, bytes / SizeOf(dtype), kCacheAmplitude, 5);
}

Row AttentionBench::Describe(const AttentionCase& c) const {
  Row row = {.suite = c.suite, .name = Name(c), .work = WorkOf(c)};
  row.floor_seconds = FloorSeconds(row.work, ceilings_);
  row.predicted_seconds = PredictedSeconds(row.work, ceilings_, ExpectationOf(c));
  row.more = ShapeToJson(c);
  return row;
}

std::vector<Row> AttentionBench::Run(const AttentionGroup& group) {
  Forget();
  absl::Status grown;
  for (const bool fp8 : {false, true}) {
    int64_t bytes = 0;
    for (const AttentionCase& c : group) bytes = std::max(bytes, c.fp8 == fp8 ? KvBytes(c) : 0);
    if (bytes > 0) grown.Update(GrowCache(fp8, bytes));
  }
  std::vector<std::unique_ptr<PreparedAttention>> prepared(group.size());
  std::vector<Variant> variants;
  for (size_t i = 0; i < group.size(); ++i) {
    Variant& variant = variants.emplace_back(Variant{Describe(group[i]), {}});
    const auto prepare = [&]() -> absl::Status {
      RETURN_IF_ERROR(grown);
      ASSIGN_OR_RETURN(prepared[i],
                       PreparedAttention::Create(device_, group[i], CacheOf(group[i])));
      variant.row.more["plan_us"] = prepared[i]->plan_seconds() * 1e6;
      variant.row.more["merges"] = prepared[i]->plan().merges().size();
      return prepared[i]->Check(variant.row.more);
    };
    variant.row.status = prepare();
    variant.enqueue = [one = prepared[i].get()] { return one->Enqueue(); };
  }
  return MeasureInTurn(device_, stopwatch_, std::move(variants));
}

Row AttentionBench::RunMerge(const AttentionCase& c) {
  Row row = {.suite = "merge", .name = absl::StrCat("merge of ", Name(c))};
  const auto run = [&]() -> absl::Status {
    Forget();
    RETURN_IF_ERROR(GrowCache(c.fp8, KvBytes(c)));
    ASSIGN_OR_RETURN(const auto prepared, PreparedAttention::Create(device_, c, CacheOf(c)));
    ASSIGN_OR_RETURN(const auto merge, MergeCase::Create(device_, prepared->plan()));
    row.work = merge->work();
    row.floor_seconds = FloorSeconds(row.work, ceilings_);
    row.predicted_seconds = PredictedSeconds(row.work, ceilings_, {});
    row.more["merges"] = prepared->plan().merges().size();
    std::vector<Variant> variants;
    variants.push_back({row, [&] { return merge->Enqueue(); }});
    row = MeasureInTurn(device_, stopwatch_, std::move(variants)).front();
    return row.status;
  };
  row.status = run();
  return row;
}

Row AttentionBench::Sample(const AttentionCase& c) {
  Row row = Describe(c);
  const auto sample = [&]() -> absl::Status {
    if (sampled_ != row.name) {
      Forget();
      RETURN_IF_ERROR(GrowCache(c.fp8, KvBytes(c)));
      ASSIGN_OR_RETURN(prepared_, PreparedAttention::Create(device_, c, CacheOf(c)));
      RETURN_IF_ERROR(prepared_->Check(row.more));
      ASSIGN_OR_RETURN(recording_, device_.Record([this] { return prepared_->Enqueue(); }));
      sampled_ = row.name;
    }
    ASSIGN_OR_RETURN(const auto seconds, stopwatch_.Measure({recording_.get()}));
    row.seconds = seconds[0];
    return absl::OkStatus();
  };
  row.status = sample();
  return row;
}

}  // namespace quire::bench
