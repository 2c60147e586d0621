#include "kernels/cuda/device_sampler.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/check.h"
#include "base/reproducible_math.h"
#include "base/status_macros.h"
#include "kernels/cuda/grow_buffer.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/sample.h"
#include "kernels/ops/check.h"
#include "kernels/sampling/exp.h"
#include "kernels/sampling/gumbel.h"
#include "kernels/sampling/kept_set.h"
#include "kernels/sampling/logprobs.h"
#include "kernels/sampling/sampler.h"

namespace quire::kernels::cuda {
namespace {

constexpr auto kRowWords = static_cast<int64_t>(sizeof(DeviceSampleRow) / sizeof(int32_t));

}  // namespace

DeviceSampler::DeviceSampler(Device& device, const SamplerSpec& spec)
    : device_(device),
      vocab_size_(spec.vocab_size),
      // A row may have a work for a given token beside its draws.
      most_rows_(2 * std::max(spec.max_rows, spec.max_draws)),
      drawable_(spec),
      end_ids_(spec.end_ids),
      row_words_(most_rows_ * kRowWords),
      in_output_(static_cast<size_t>(spec.vocab_size), -1) {}

absl::StatusOr<std::unique_ptr<DeviceSampler>> DeviceSampler::Create(Device& device,
                                                                     const SamplerSpec& spec) {
  std::unique_ptr<DeviceSampler> sampler(new DeviceSampler(device, spec));
  RETURN_IF_ERROR(sampler->Allocate(spec));
  return sampler;
}

absl::Status DeviceSampler::Allocate(const SamplerSpec& spec) {
  // Each block has a row to change. More blocks than multiprocessors would not run at once.
  grid_size_ = std::max<int64_t>(1, std::min<int64_t>(device_.info().num_sms, most_rows_));
  const int64_t row_bytes = most_rows_ * static_cast<int64_t>(sizeof(DeviceSampleRow));
  const int64_t result_bytes = most_rows_ * static_cast<int64_t>(sizeof(DeviceSampleResult));
  const int64_t top_bytes =
      most_rows_ * kMostTopLogprobs * static_cast<int64_t>(sizeof(TokenLogprob));
  ASSIGN_OR_RETURN(rows_, device_.Allocate(row_bytes));
  RETURN_IF_ERROR(device_.Fill(rows_.data(), 0, row_bytes));
  ASSIGN_OR_RETURN(changes_, device_.Allocate(row_words_.max_changes_bytes()));
  ASSIGN_OR_RETURN(edited_, device_.Allocate(grid_size_ * std::max<int64_t>(drawable_.end, 1) *
                                             SizeOf(DType::kF32)));
  ASSIGN_OR_RETURN(results_, device_.Allocate(result_bytes));
  ASSIGN_OR_RETURN(tops_, device_.Allocate(top_bytes));
  for (Call& call : calls_) {
    ASSIGN_OR_RETURN(call.changes, device_.AllocateHost(row_words_.max_changes_bytes()));
    ASSIGN_OR_RETURN(call.results, device_.AllocateHost(result_bytes));
    ASSIGN_OR_RETURN(call.tops, device_.AllocateHost(top_bytes));
  }

  const auto reach = sampling::ReachTable();
  std::vector<int32_t> constants(reach.begin(), reach.end());
  constants.insert(constants.end(), drawable_.holes.begin(), drawable_.holes.end());
  constants.insert(constants.end(), spec.end_ids.begin(), spec.end_ids.end());
  const auto bytes = static_cast<int64_t>(constants.size() * sizeof(int32_t));
  ASSIGN_OR_RETURN(constants_, device_.Allocate(bytes));
  RETURN_IF_ERROR(device_.CopyToDevice(constants_.data(), constants.data(), bytes));
  return device_.Synchronize();  // the copy reads `constants`
}

absl::Status DeviceSampler::Enqueue(const SampleArgs& args) {
  RETURN_IF_ERROR(Validate(args));
  return static_cast<DeviceSampler*>(args.sampler)->EnqueueHere(args);
}

absl::Status DeviceSampler::EnqueueHere(const SampleArgs& args) {
  if (args.logits.dim(1) > vocab_size_ || args.logits.dim(1) == 0) {
    return WantGot("logits", absl::StrCat("1 to ", vocab_size_, " ids"), args.logits.ToString());
  }
  if (std::ssize(args.rows) > most_rows_) {
    return WantGot("rows", absl::StrCat("at most ", most_rows_), absl::StrCat(args.rows.size()));
  }
  for (const SampleRow& row : args.rows) {
    if (row.num_best > 0) return absl::UnimplementedError("rows.num_best: not on CUDA");
  }
  QUIRE_CHECK(num_enqueued_ - num_taken_ < 2) << "the results of two calls have not been taken";
  Call& call = calls_[static_cast<size_t>(num_enqueued_ % 2)];
  RETURN_IF_ERROR(Upload(args, call));
  RETURN_IF_ERROR(Launch(args, call));
  ++num_enqueued_;
  return absl::OkStatus();
}

template <typename T>
DataRange DeviceSampler::AppendData(std::span<const T> values) {
  static_assert(sizeof(T) % sizeof(int32_t) == 0 && alignof(T) <= 8);
  if (data_.size() % 2 != 0) data_.push_back(0);  // a set's words need 8 bytes
  const DataRange range = {.begin = static_cast<int32_t>(data_.size()),
                           .size = static_cast<int32_t>(values.size())};
  data_.resize(data_.size() + values.size() * (sizeof(T) / sizeof(int32_t)));
  if (!values.empty()) {
    std::memcpy(data_.data() + range.begin, values.data(), values.size_bytes());
  }
  return range;
}

DeviceSampleRow DeviceSampler::Pack(const SampleRow& row) {
  DeviceSampleRow packed = {.row = static_cast<int32_t>(row.row), .given = row.given};
  packed.seen.size = -1;
  if (row.given >= 0) {
    packed.num_top = row.num_top.value_or(0);
    return packed;
  }
  const DrawParams& params = row.params;
  packed.seed = row.seed;
  packed.position = row.position;
  if (params.min_p > 0.0f) {
    packed.min_p_depth = -base::Log(static_cast<double>(params.min_p)) * params.temperature;
  }
  packed.temperature = params.temperature;
  packed.typical_p = params.typical_p;
  packed.top_p = params.top_p;
  packed.top_k = params.top_k;
  packed.draw = row.draw;
  packed.num_top = row.num_top.value_or(-1);
  packed.bans_end_ids = row.bans_end_ids ? 1 : 0;
  if (params.has_penalties()) {
    packed.previous = row.previous;
    packed.repetition_penalty = params.repetition_penalty;
    packed.frequency_penalty = params.frequency_penalty;
    packed.presence_penalty = params.presence_penalty;
    PackSeen(row, packed.seen);
  }
  packed.biases = AppendData(row.biases);
  if (row.allowed != nullptr) packed.allowed = AppendData(row.allowed->words());
  if (row.banned != nullptr) packed.banned = AppendData(row.banned->words());
  return packed;
}

// Counts the tokens in the window, but the one that the host does not know yet.
void DeviceSampler::PackSeen(const SampleRow& row, DataRange& seen) {
  const int64_t size = std::ssize(row.tokens), num_unknown = row.previous >= 0 ? 1 : 0;
  QUIRE_CHECK(size + num_unknown == row.prompt_len + row.position) << "tokens are missing";
  const int64_t last_n = row.params.penalty_last_n;
  const int64_t window = last_n < 0 ? size : std::min(size, last_n - num_unknown);
  seen_.clear();
  for (int64_t i = size - window; i < size; ++i) {
    const int32_t id = row.tokens[static_cast<size_t>(i)];
    if (id < 0 || id >= vocab_size_) continue;
    int32_t& in_output = in_output_[static_cast<size_t>(id)];
    if (in_output < 0) {
      in_output = 0;
      seen_.push_back({.id = id});
    }
    if (i >= row.prompt_len) ++in_output;
  }
  for (SeenToken& token : seen_) {
    token.in_output = std::exchange(in_output_[static_cast<size_t>(token.id)], -1);
  }
  seen = AppendData(std::span<const SeenToken>(seen_));
}

absl::Status DeviceSampler::Upload(const SampleArgs& args, Call& call) {
  data_.clear();
  call.num_top.clear();
  row_words_.Begin();
  for (size_t i = 0; i < args.rows.size(); ++i) {
    const DeviceSampleRow row = Pack(args.rows[i]);
    call.num_top.push_back(row.num_top);
    int32_t words[kRowWords];
    std::memcpy(words, &row, sizeof(row));
    for (int64_t w = 0; w < kRowWords; ++w) {
      row_words_.Set(static_cast<int64_t>(i) * kRowWords + w, words[w]);
    }
  }
  const auto data_bytes = static_cast<int64_t>(data_.size() * sizeof(int32_t));
  if (data_bytes > 0) {
    RETURN_IF_ERROR(GrowBuffer(device_, &Device::AllocateHost, data_bytes, call.data).status());
    RETURN_IF_ERROR(GrowBuffer(device_, &Device::Allocate, data_bytes, data_device_).status());
    std::memcpy(call.data.data(), data_.data(), static_cast<size_t>(data_bytes));
    RETURN_IF_ERROR(device_.CopyToDevice(data_device_.data(), call.data.data(), data_bytes));
  }
  const std::span<const TableChange> changes = row_words_.changes();
  if (!changes.empty()) {
    std::memcpy(call.changes.data(), changes.data(), changes.size_bytes());
    RETURN_IF_ERROR(device_.CopyToDevice(changes_.data(), call.changes.data(),
                                         static_cast<int64_t>(changes.size_bytes())));
    RETURN_IF_ERROR(UpdateTable(
        device_, {.table = TensorView(rows_.data(), DType::kI32, {row_words_.size()}),
                  .changes = TensorView(changes_.data(), DType::kI32, {std::ssize(changes), 2})}));
  }
  row_words_.Commit();
  return absl::OkStatus();
}

absl::Status DeviceSampler::Launch(const SampleArgs& args, Call& call) {
  if (args.rows.empty()) return absl::OkStatus();
  const auto* const constants = static_cast<const int32_t*>(constants_.data());
  const int32_t* const holes = constants + sampling::kNumReachSteps;
  RETURN_IF_ERROR(LaunchSample(device_,
                               {.logits = args.logits.data<const float>(),
                                .rows = static_cast<const DeviceSampleRow*>(rows_.data()),
                                .data = static_cast<const int32_t*>(data_device_.data()),
                                .drawn = args.drawn.data<const int32_t>(),
                                .reach = static_cast<const uint32_t*>(constants_.data()),
                                .holes = holes,
                                .end_ids = holes + drawable_.holes.size(),
                                .edited = static_cast<float*>(edited_.data()),
                                .results = static_cast<DeviceSampleResult*>(results_.data()),
                                .tops = static_cast<TokenLogprob*>(tops_.data()),
                                .num_ids = static_cast<int32_t>(args.logits.dim(1)),
                                .num_rows = static_cast<int32_t>(args.rows.size()),
                                .num_drawable = drawable_.end,
                                .num_holes = static_cast<int32_t>(drawable_.holes.size()),
                                .num_end_ids = static_cast<int32_t>(end_ids_.size())},
                               args.drawn.data<int32_t>(), grid_size_));
  const int64_t num_rows = std::ssize(args.rows);
  RETURN_IF_ERROR(device_.CopyToHost(call.results.data(), results_.data(),
                                     num_rows * static_cast<int64_t>(sizeof(DeviceSampleResult))));
  if (std::ranges::none_of(call.num_top, [](int32_t n) { return n > 0; })) return absl::OkStatus();
  return device_.CopyToHost(
      call.tops.data(), tops_.data(),
      num_rows * kMostTopLogprobs * static_cast<int64_t>(sizeof(TokenLogprob)));
}

void DeviceSampler::Take(std::vector<absl::StatusOr<SampledRow>>& results) {
  QUIRE_CHECK(num_taken_ < num_enqueued_) << "no call has results to take";
  const Call& call = calls_[static_cast<size_t>(num_taken_++ % 2)];
  results.clear();
  for (size_t i = 0; i < call.num_top.size(); ++i) results.push_back(Unpack(call, i));
}

absl::StatusOr<SampledRow> DeviceSampler::Unpack(const Call& call, size_t i) const {
  const auto& result = static_cast<const DeviceSampleResult*>(call.results.data())[i];
  if (result.status == DeviceSampleResult::kNotFinite) return sampling::NotFinite(result.max);
  if (result.status == DeviceSampleResult::kNoneLeft) return sampling::NoneLeft();
  SampledRow row = {.id = result.id};
  if (call.num_top[i] < 0) return row;
  const double log_sum = base::Log(static_cast<double>(result.sum) / sampling::kWeightUnits);
  const auto logprob = [&](float logit) { return sampling::Logprob(logit, result.max, log_sum); };
  PositionLogprobs& logprobs = row.logprobs.emplace();
  logprobs.chosen = {.token_id = result.id, .logprob = logprob(result.chosen_logit)};
  const auto* const tops =
      static_cast<const TokenLogprob*>(call.tops.data()) + i * kMostTopLogprobs;
  std::vector<sampling::Candidate> candidates;
  for (int32_t k = 0; k < result.num_top; ++k) {
    candidates.push_back({.logit = tops[k].logprob, .id = tops[k].token_id});
  }
  std::sort(candidates.begin(), candidates.end());
  for (const sampling::Candidate& candidate : candidates) {
    logprobs.top.push_back({.token_id = candidate.id, .logprob = logprob(candidate.logit)});
  }
  return row;
}

}  // namespace quire::kernels::cuda
