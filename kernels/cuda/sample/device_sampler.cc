#include "kernels/cuda/sample/device_sampler.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/check.h"
#include "base/reproducible_math.h"
#include "base/status_macros.h"
#include "kernels/cuda/sample/sample.h"
#include "kernels/ops/check.h"
#include "kernels/sampling/exp.h"
#include "kernels/sampling/gumbel.h"
#include "kernels/sampling/kept_set.h"
#include "kernels/sampling/logprobs.h"
#include "kernels/sampling/sampler.h"

namespace quire::kernels::cuda {
namespace {

constexpr auto kRowWords = static_cast<int64_t>(sizeof(DeviceSampleRow) / sizeof(int32_t));
// The most changes of a slot that goes on. A step adds a token or two to a sequence, and as many
// leave the window.
constexpr int64_t kMostSlotChanges = 4;

// A row may have a work for a given token beside its draws.
int64_t MostRows(int64_t max_rows, int64_t max_draws) { return 2 * std::max(max_rows, max_draws); }

bool HasIds(const TokenSet* set) { return set != nullptr && !set->empty(); }

// Returns the first token of `row` that the penalties count. The window also has the token that the
// host does not know yet.
int64_t WindowBegin(const SampleRow& row) {
  const int64_t size = std::ssize(row.tokens), num_unknown = row.previous >= 0 ? 1 : 0;
  const int64_t last_n = row.params.penalty_last_n;
  return last_n < 0 ? 0 : size - std::min(size, last_n - num_unknown);
}

// Writes the words of `set` to `words`, which hold the ids of a vocabulary.
void WriteSet(const TokenSet* set, std::span<int32_t> words) {
  std::ranges::fill(words, 0);
  if (!HasIds(set)) return;
  const auto from = std::as_bytes(set->words());
  std::memcpy(words.data(), from.data(), std::min(from.size(), words.size_bytes()));
}

}  // namespace

DeviceSampler::DeviceSampler(Device& device, const SamplerSpec& spec)
    : device_(device),
      vocab_size_(spec.vocab_size),
      most_rows_(MostRows(spec.max_rows, spec.max_draws)),
      drawable_(spec),
      layout_{.vocab_size = spec.vocab_size},
      end_ids_(spec.end_ids),
      row_words_(most_rows_ * kRowWords),
      slots_(static_cast<size_t>(spec.max_draws)) {
  changes_.reserve(static_cast<size_t>(MostChanges(spec.max_rows, spec.max_draws)));
}

int64_t DeviceSampler::MostChanges(int64_t max_rows, int64_t max_draws) {
  return MostRows(max_rows, max_draws) * kRowWords + max_draws * kMostSlotChanges;
}

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
  const int64_t slot_bytes = layout_.num_words() * static_cast<int64_t>(sizeof(int32_t));
  const int64_t result_bytes = most_rows_ * static_cast<int64_t>(sizeof(DeviceSampleResult));
  const int64_t top_bytes =
      most_rows_ * kMostTopLogprobs * static_cast<int64_t>(sizeof(TokenLogprob));
  // TableChange has indices of 32 bits.
  if ((row_bytes + std::ssize(slots_) * slot_bytes) / 4 > std::numeric_limits<int32_t>::max()) {
    return WantGot("max_draws", absl::StrCat("at most 2^31 words, of ", layout_.num_words()),
                   absl::StrCat(slots_.size()));
  }
  ASSIGN_OR_RETURN(table_, device_.Allocate(row_bytes + std::ssize(slots_) * slot_bytes));
  RETURN_IF_ERROR(device_.Fill(table_.data(), 0, row_bytes));
  ASSIGN_OR_RETURN(edited_, device_.Allocate(grid_size_ * std::max<int64_t>(drawable_.end, 1) *
                                             SizeOf(DType::kF32)));
  ASSIGN_OR_RETURN(results_, device_.Allocate(result_bytes));
  ASSIGN_OR_RETURN(tops_, device_.Allocate(top_bytes));
  for (Call& call : calls_) {
    ASSIGN_OR_RETURN(call.starts, device_.AllocateHost(kStartsAtOnce * slot_bytes));
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
  if (num_prepared_ != std::ssize(args.rows)) {
    return WantGot("rows", "those of PreparedSampler::Prepare", absl::StrCat(args.rows.size()));
  }
  RETURN_IF_ERROR(Launch(args, next_call()));
  row_words_.Commit();
  num_prepared_.reset();
  ++num_enqueued_;
  return absl::OkStatus();
}

absl::StatusOr<TableUpdate> DeviceSampler::Prepare(std::span<const SampleRow> rows) {
  if (std::ssize(rows) > most_rows_) {
    return WantGot("rows", absl::StrCat("at most ", most_rows_), absl::StrCat(rows.size()));
  }
  QUIRE_CHECK(num_enqueued_ - num_taken_ < 2) << "the results of two calls have not been taken";
  if (num_prepared_) {  // but not enqueued, so the device may lack the changes
    slot_of_.clear();
    for (Slot& slot : slots_) slot.sequence = slot.last_call = -1;
  }
  num_prepared_ = std::ssize(rows);
  num_starts_ = 0;
  changes_.clear();
  row_words_.Begin();
  Call& call = next_call();
  call.num_top.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSIGN_OR_RETURN(const DeviceSampleRow row, Pack(rows[i], call));
    call.num_top.push_back(row.num_top);
    int32_t words[kRowWords];
    std::memcpy(words, &row, sizeof(row));
    for (int64_t w = 0; w < kRowWords; ++w) {
      row_words_.Set(static_cast<int64_t>(i) * kRowWords + w, words[w]);
    }
  }
  const std::span<const TableChange> of_rows = row_words_.changes();
  changes_.insert(changes_.end(), of_rows.begin(), of_rows.end());
  const int64_t num_words = table_.bytes() / static_cast<int64_t>(sizeof(int32_t));
  return TableUpdate{.table = TensorView(table_.data(), DType::kI32, {num_words}),
                     .changes = changes_};
}

absl::StatusOr<DeviceSampleRow> DeviceSampler::Pack(const SampleRow& row, Call& call) {
  if (row.num_best > 0) return absl::UnimplementedError("rows.num_best: not on CUDA");
  DeviceSampleRow packed = {.row = static_cast<int32_t>(row.row), .given = row.given};
  if (row.given >= 0) {
    packed.num_top = row.num_top.value_or(0);
    packed.wants_rank = row.wants_rank ? 1 : 0;
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
  packed.wants_rank = row.wants_rank ? 1 : 0;
  packed.bans_end_ids = row.bans_end_ids ? 1 : 0;
  if (params.has_penalties()) {
    QUIRE_CHECK(std::ssize(row.tokens) + (row.previous >= 0 ? 1 : 0) ==
                row.prompt_len + row.position)
        << "tokens are missing";
    packed.has_penalties = 1;
    packed.previous = row.previous;
    packed.repetition_penalty = params.repetition_penalty;
    packed.frequency_penalty = params.frequency_penalty;
    packed.presence_penalty = params.presence_penalty;
  }
  packed.num_biases = static_cast<int32_t>(row.biases.size());
  packed.has_allowed = HasIds(row.allowed) ? 1 : 0;
  packed.has_banned = HasIds(row.banned) ? 1 : 0;
  if (packed.has_penalties + packed.num_biases + packed.has_allowed + packed.has_banned > 0) {
    ASSIGN_OR_RETURN(packed.slot, SlotOf(row, call));
  }
  return packed;
}

absl::StatusOr<int32_t> DeviceSampler::SlotOf(const SampleRow& row, Call& call) {
  const auto known = row.sequence < 0 ? slot_of_.end() : slot_of_.find(row.sequence);
  if (known != slot_of_.end()) {
    Slot& slot = slots_[static_cast<size_t>(known->second)];
    slot.last_call = num_enqueued_;
    if (!Continue(row, slot)) RETURN_IF_ERROR(Start(row, slot, call));
    return known->second;
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    last_slot_ = (last_slot_ + 1) % slots_.size();
    Slot& slot = slots_[last_slot_];
    if (slot.last_call == num_enqueued_) continue;
    slot_of_.erase(slot.sequence);
    slot.sequence = row.sequence;
    slot.last_call = num_enqueued_;
    const auto index = static_cast<int32_t>(last_slot_);
    if (row.sequence >= 0) slot_of_[row.sequence] = index;
    RETURN_IF_ERROR(Start(row, slot, call));
    return index;
  }
  return WantGot("rows", absl::StrCat("draws for at most ", slots_.size(), " sequences"), "more");
}

void DeviceSampler::CountTokens(const SampleRow& row, int64_t begin, int64_t end, int32_t by,
                                Slot& slot) {
  for (int64_t i = begin; i < end; ++i) {
    const int32_t id = row.tokens[static_cast<size_t>(i)];
    if (id < 0 || id >= vocab_size_) continue;
    Count& count = slot.counts[id];
    count.in_window += by;
    if (i >= row.prompt_len) count.in_output += by;
    touched_.push_back(id);
  }
}

bool DeviceSampler::Continue(const SampleRow& row, Slot& slot) {
  if (HasIds(row.banned) && !slot.has_banned) return false;
  if (!row.params.has_penalties()) return true;
  const int64_t begin = WindowBegin(row), end = std::ssize(row.tokens);
  const int64_t num_moves = begin - slot.begin + end - slot.end;
  if (!slot.has_penalties || begin < slot.begin || end < slot.end || begin > slot.end ||
      num_moves > kMostSlotChanges) {
    return false;
  }
  touched_.clear();
  CountTokens(row, slot.end, end, 1, slot);
  CountTokens(row, slot.begin, begin, -1, slot);
  slot.begin = begin;
  slot.end = end;
  std::ranges::sort(touched_);
  touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
  const int64_t first = FirstWord(slot) + layout_.seen();
  for (const int32_t id : touched_) {
    const auto count = slot.counts.find(id);
    const bool is_seen = count->second.in_window > 0;
    changes_.push_back({.index = static_cast<int32_t>(first + id),
                        .value = is_seen ? 1 + count->second.in_output : 0});
    if (!is_seen) slot.counts.erase(count);
  }
  return true;
}

absl::Status DeviceSampler::Start(const SampleRow& row, Slot& slot, Call& call) {
  if (std::ssize(row.biases) > kMostBiases) {
    return WantGot("rows.biases", absl::StrCat("at most ", kMostBiases),
                   absl::StrCat(row.biases.size()));
  }
  const int64_t num_words = layout_.num_words();
  if (num_starts_ == kStartsAtOnce) {
    RETURN_IF_ERROR(device_.Synchronize());
    num_starts_ = 0;
  }
  const std::span words(static_cast<int32_t*>(call.starts.data()) + num_starts_ * num_words,
                        static_cast<size_t>(num_words));
  ++num_starts_;
  const auto part = [&](int64_t begin, int64_t size) {
    return words.subspan(static_cast<size_t>(begin), static_cast<size_t>(size));
  };
  if (!row.biases.empty()) {
    std::memcpy(words.data(), row.biases.data(), row.biases.size_bytes());
  }
  WriteSet(row.allowed, part(layout_.allowed(), layout_.num_set_words()));
  WriteSet(row.banned, part(layout_.banned(), layout_.num_set_words()));
  slot.has_banned = HasIds(row.banned);
  slot.has_penalties = row.params.has_penalties();
  slot.counts.clear();
  if (slot.has_penalties) {
    slot.begin = WindowBegin(row);
    slot.end = std::ssize(row.tokens);
    touched_.clear();
    CountTokens(row, slot.begin, slot.end, 1, slot);
    const std::span<int32_t> seen = part(layout_.seen(), vocab_size_);
    std::ranges::fill(seen, 0);
    for (const auto& [id, count] : slot.counts) seen[static_cast<size_t>(id)] = 1 + count.in_output;
  }
  const int64_t used = slot.has_penalties ? num_words : layout_.seen();
  return device_.CopyToDevice(static_cast<int32_t*>(table_.data()) + FirstWord(slot), words.data(),
                              used * static_cast<int64_t>(sizeof(int32_t)));
}

absl::Status DeviceSampler::Launch(const SampleArgs& args, Call& call) {
  if (args.rows.empty()) return absl::OkStatus();
  const auto* const constants = static_cast<const int32_t*>(constants_.data());
  const int32_t* const holes = constants + sampling::kNumReachSteps;
  RETURN_IF_ERROR(
      LaunchSample(device_,
                   {.logits = args.logits.data<const float>(),
                    .rows = static_cast<const DeviceSampleRow*>(table_.data()),
                    .slots = static_cast<const int32_t*>(table_.data()) + row_words_.size(),
                    .drawn = args.drawn.data<const int32_t>(),
                    .reach = static_cast<const uint32_t*>(constants_.data()),
                    .holes = holes,
                    .end_ids = holes + drawable_.holes.size(),
                    .edited = static_cast<float*>(edited_.data()),
                    .results = static_cast<DeviceSampleResult*>(results_.data()),
                    .tops = static_cast<TokenLogprob*>(tops_.data()),
                    .layout = layout_,
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
  logprobs.rank = result.rank;
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
