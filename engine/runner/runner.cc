#include "engine/runner/runner.h"

#include <algorithm>
#include <deque>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/logging.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "engine/batch/lone_input.h"
#include "engine/kv/kv_check.h"
#include "engine/model/decode_bucket.h"
#include "kernels/row_bucket.h"

namespace quire::engine {
namespace {

using kernels::DType;
using kernels::TensorView;

// Returns the least of Backend::LeastSavedKeys over the layers of group 0 that share keys. A plain
// kernel shares none.
int64_t LeastSavedKeys(const kernels::Backend& backend, const Model& model, const KvCache& cache) {
  int64_t least = 0;
  for (const int64_t layer : cache.groups()[0].layers) {
    const kernels::AttentionPlanKey key = model.config().layers[layer].attention.plan_key();
    if (!backend.HasFastAttention(cache.shape().dtype, key, cache.shape().block_size)) continue;
    const int64_t keys = backend.LeastSavedKeys(cache.shape().dtype, key);
    if (keys > 0 && (least == 0 || keys < least)) least = keys;
  }
  return least;
}

}  // namespace

struct Runner::Slot {
  ModelInput input;
  StepResult result;
  std::vector<kernels::SampleRow> sample_rows;
  // Token histories of sequences with penalties that have drafts or lack a token still in flight. A
  // history holds the sequence's tokens, then the drafts.
  std::deque<std::vector<int32_t>> histories;
  std::unique_ptr<kernels::Event> done;
};

Runner::Runner(kernels::Backend& backend, Model& model, kernels::PreparedSampler& sampler,
               KvCache& cache, const StepLimits& limits, const BlockManager& blocks)
    : backend_(backend),
      model_(model),
      sampler_(sampler),
      cache_(cache),
      limits_(limits),
      least_saved_keys_(LeastSavedKeys(backend, model, cache)),
      builder_(blocks, least_saved_keys_) {}

// Waits, because enqueued work uses members of the runner.
Runner::~Runner() { backend_.Synchronize().IgnoreError(); }

absl::StatusOr<WarmUpTimes> Runner::WarmUp(const std::vector<int32_t>& tokens,
                                           const base::Clock& clock) {
  for (std::unique_ptr<Slot>& slot : slots_) {
    slot = std::make_unique<Slot>();
    ASSIGN_OR_RETURN(slot->done, backend_.CreateEvent());
  }
  ASSIGN_OR_RETURN(drawn_memory_, backend_.Allocate(limits_.max_logit_rows * SizeOf(DType::kI32)));
  drawn_ = TensorView(drawn_memory_.data(), DType::kI32, {limits_.max_logit_rows});

  ModelInput prompt = MakeLoneInput(tokens, 0, 1, cache_);
  ModelInput decode = MakeLoneInput(std::span(tokens).first(1), 0, 1, cache_);
  prompt.drawn = decode.drawn = drawn_;
  // The first forward pass is not timed: the weights may not be in memory yet, so this pass may be
  // much slower than later ones.
  Slot& slot = *slots_[0];
  slot.input = decode;
  slot.sample_rows = {{.given = tokens[0]}};
  RETURN_IF_ERROR(ForwardAndSample(slot));
  RETURN_IF_ERROR(backend_.Synchronize());
  sampler_.Take(slot.result.rows);
  if (!slot.result.rows[0].ok()) {
    base::Log(base::LogLevel::kWarning, "engine", "the warm-up's logits are not finite",
              {{"because", WhyNotFinite(decode, 0)}});
  }
  if (limits_.warms_up_every_size) RETURN_IF_ERROR(WarmUpEverySize(tokens[0]));
  const auto time = [&](const ModelInput& input) -> absl::StatusOr<absl::Duration> {
    const absl::Time begin = clock.Now();
    RETURN_IF_ERROR(model_.Forward(input, cache_).status());
    RETURN_IF_ERROR(backend_.Synchronize());
    return clock.Now() - begin;
  };
  WarmUpTimes times;
  ASSIGN_OR_RETURN(times.prompt, time(prompt));
  ASSIGN_OR_RETURN(times.decode, time(decode));
  if (limits_.max_draft_tokens > 0) {
    times.num_verified =
        static_cast<int32_t>(std::min<int64_t>(1 + limits_.max_draft_tokens, std::ssize(tokens)));
    const ModelInput verified =
        MakeLoneInput(std::span(tokens).first(static_cast<size_t>(times.num_verified)), 0,
                      times.num_verified, cache_);
    // The shorter of two times, so that a hiccup does not make drafts look dear.
    ASSIGN_OR_RETURN(const absl::Duration first, time(verified));
    ASSIGN_OR_RETURN(const absl::Duration second, time(verified));
    times.verified = std::min(first, second);
  }
  ASSIGN_OR_RETURN(last_done_, backend_.CreateEvent());
  RETURN_IF_ERROR(backend_.Mark(*last_done_));
  RETURN_IF_ERROR(backend_.Wait(*last_done_));
  return times;
}

// Runs decodes of every recorded size, prompts of every size in which a backend prepares its
// products, with as many rows of logits as such a step may have, and the other ops of a step. So
// later steps neither record nor prepare, and all memory that they need is allocated. That includes
// the code of kernels, which CUDA loads when a kernel is launched first. Loading all code at the
// start (CUDA_MODULE_LOADING=EAGER) would also load the thousands of kernels of cuBLASLt.
absl::Status Runner::WarmUpEverySize(int32_t token) {
  if (!backend_.info().records) return absl::OkStatus();
  const auto forward = [&](ModelInput input) -> absl::Status {
    input.drawn = drawn_;
    RETURN_IF_ERROR(model_.Forward(input, cache_).status());
    return backend_.Synchronize();
  };
  const auto run = [&](int64_t num_tokens, int64_t seq_len) {
    return forward(MakeIdleInput(num_tokens, seq_len, std::min(num_tokens, limits_.max_logit_rows),
                                 token, cache_));
  };
  ModelInput moving = MakeIdleInput(1, 1, 1, token, cache_);
  for (size_t group = 0; group < moving.groups.size(); ++group) {
    if (cache_.groups()[group].num_blocks < 2) continue;
    moving.groups[group].copies = {{.source = 0, .destination = 1}};
  }
  moving.shifts = {{.block = 0, .distance = 0}};
  RETURN_IF_ERROR(forward(std::move(moving)));
  const bool shares =
      least_saved_keys_ > 0 && limits_.max_model_len > kernels::AttentionPattern::kTileKeys;
  for (int64_t size = 0; size < limits_.max_seqs;) {
    size = DecodeBucket(size + 1, limits_.max_seqs);
    RETURN_IF_ERROR(run(size, 1));
    if (shares && size >= 2) RETURN_IF_ERROR(forward(MakeSharingInput(size, token, cache_)));
  }
  const int64_t most_tokens =
      std::min(limits_.max_tokens, limits_.max_seqs * limits_.max_model_len);
  for (int64_t size = 1; size < most_tokens;) {  // one token is a decode
    size = std::min(kernels::RowBucket(size + 1), most_tokens);
    RETURN_IF_ERROR(run(size, limits_.max_model_len));
  }
  return absl::OkStatus();
}

absl::Status Runner::Submit(const StepPlan& plan) {
  QUIRE_CHECK(num_submitted_ - num_collected_ <= limits_.pipeline_depth)
      << num_submitted_ - num_collected_ << " steps are in flight";
  const absl::Status status = Enqueue(plan, *slots_[num_submitted_ % 2]);
  if (status.ok()) {
    ++num_submitted_;
  } else {
    // A part of the failed step may have been enqueued. That part must end before the next step
    // gets the slot.
    backend_.Synchronize().IgnoreError();
  }
  return status;
}

absl::Status Runner::Enqueue(const StepPlan& plan, Slot& slot) {
  builder_.Build(plan, slot.input);
  slot.input.drawn = drawn_;
  const int32_t num_drawn = ListRowWork(plan, slot.result.works);
  QUIRE_CHECK(num_drawn <= limits_.max_logit_rows) << "a step draws more tokens than its limits";
  slot.result.rows.clear();

  AddSampleRows(plan, slot);
  RETURN_IF_ERROR(ForwardAndSample(slot));
  return backend_.Mark(*slot.done);
}

void Runner::AddSampleRows(const StepPlan& plan, Slot& slot) {
  slot.sample_rows.clear();
  slot.histories.clear();
  for (const RowWork& work : slot.result.works) {
    const StepPlanEntry& entry = plan.entries[work.entry];
    const Sequence& sequence = *entry.sequence;
    const bool lacks_a_token = entry.token_from_previous >= 0;
    const int64_t num_drafts = work.draws() ? work.index : 0;
    std::span<const int32_t> tokens = sequence.tokens;
    if ((lacks_a_token || num_drafts > 0) && sequence.request->params.sampling.has_penalties()) {
      // The works of an entry follow each other, in the order of its drafts.
      if (num_drafts <= 1) {
        std::vector<int32_t>& history = slot.histories.emplace_back(sequence.tokens);
        const auto drafts = plan.drafts.begin() + entry.first_draft;
        history.insert(history.end(), drafts, drafts + entry.num_drafts);
      }
      tokens = std::span(slot.histories.back()).first(sequence.tokens.size() + num_drafts);
    }
    slot.sample_rows.push_back(
        MakeSampleRow(work, *sequence.request, tokens,
                      sequence.num_generated() + (lacks_a_token ? 1 : 0) + num_drafts));
    slot.sample_rows.back().previous = entry.token_from_previous;
    // Drafts may be other tokens in the next step.
    if (entry.num_drafts == 0) slot.sample_rows.back().sequence = sequence.id;
  }
}

absl::Status Runner::ForwardAndSample(Slot& slot) {
  const bool samples = !slot.sample_rows.empty();
  slot.input.sampler_update = {};
  if (samples) {
    ASSIGN_OR_RETURN(slot.input.sampler_update, sampler_.Prepare(slot.sample_rows));
  }
  ASSIGN_OR_RETURN(const TensorView logits, model_.Forward(slot.input, cache_));
  if (!samples) return absl::OkStatus();
  return backend_.Sample(
      {.logits = logits, .rows = slot.sample_rows, .drawn = drawn_, .sampler = &sampler_});
}

absl::Status Runner::Collect(StepResult& result) {
  QUIRE_CHECK(num_collected_ < num_submitted_) << "no step is in flight";
  Slot& slot = *slots_[num_collected_++ % 2];
  RETURN_IF_ERROR(backend_.Wait(*slot.done));
  ASSIGN_OR_RETURN(slot.result.since_previous, backend_.TimeBetween(*last_done_, *slot.done));
  std::swap(last_done_, slot.done);  // the slot's next step moves the older mark
  if (!slot.sample_rows.empty()) sampler_.Take(slot.result.rows);
  QUIRE_CHECK(slot.result.rows.size() == slot.result.works.size()) << "the step has not run";
  std::swap(result, slot.result);
  return absl::OkStatus();
}

std::string Runner::WhyNotFinite(int32_t entry) const {
  return WhyNotFinite(slots_[(num_collected_ + 1) % 2]->input, entry);
}

std::string Runner::WhyNotFinite(const ModelInput& input, int64_t seq) const {
  const int32_t block_size = cache_.shape().block_size;
  const int64_t num_blocks = base::CeilDiv(input.context_lens[seq], block_size);
  std::vector<std::span<const int32_t>> blocks;
  for (const GroupInput& group : input.groups) {
    const int64_t count = std::min(num_blocks, group.max_blocks_per_seq);
    blocks.emplace_back(group.block_table.data() + seq * group.max_blocks_per_seq, count);
  }
  return DescribeNonFiniteKv(backend_, cache_, blocks).value_or("");
}

}  // namespace quire::engine
