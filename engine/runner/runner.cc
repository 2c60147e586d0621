#include "engine/runner/runner.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/logging.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "engine/batch/lone_input.h"
#include "engine/kv/kv_check.h"
#include "kernels/sampling/penalties.h"

namespace quire::engine {
namespace {

using kernels::DType;
using kernels::SampledRow;
using kernels::SampleRow;
using kernels::TensorView;

// Returns one row of logits, with every id of the vocabulary of the model, padding included.
std::span<const float> LogitRow(const TensorView& logits, int64_t row) {
  return {logits.data<const float>() + row * logits.dim(1), static_cast<size_t>(logits.dim(1))};
}

}  // namespace

struct Runner::Slot {
  // The tokens of a sequence whose last token only the device knows when the step is submitted.
  struct History {
    size_t row = 0;      // index in sample_rows
    int32_t source = 0;  // index of the last token among the draws of the step before
    std::vector<int32_t> tokens;
  };

  ModelInput input;
  StepResult result;
  std::vector<SampleRow> sample_rows;
  std::vector<History> histories;  // of rows that have penalties
  TensorView host_logits;
  // Memory of the host. `logits` is empty if the host can access the backend's memory.
  kernels::DeviceBuffer logits, drawn;
  std::unique_ptr<kernels::Event> done;
};

Runner::Runner(kernels::Backend& backend, Model& model, KvCache& cache, const StepLimits& limits,
               const BlockManager& blocks, kernels::sampling::Sampler sampler)
    : backend_(backend),
      model_(model),
      cache_(cache),
      limits_(limits),
      builder_(blocks),
      parallel_for_([&backend](int64_t n, const std::function<void(int64_t)>& work) {
        backend.RunOnHost(n, work);
      }),
      sampler_(std::move(sampler)) {}

// Waits, because enqueued work uses members of the runner.
Runner::~Runner() { backend_.Synchronize().IgnoreError(); }

absl::StatusOr<WarmUpTimes> Runner::WarmUp(const std::vector<int32_t>& tokens,
                                           const base::Clock& clock) {
  const bool host_memory = backend_.info().host_memory;
  const int64_t row_bytes = model_.config().vocab_size * int64_t{SizeOf(DType::kF32)};
  for (std::unique_ptr<Slot>& slot : slots_) {
    slot = std::make_unique<Slot>();
    ASSIGN_OR_RETURN(slot->drawn, backend_.AllocateHost(limits_.max_seqs * SizeOf(DType::kI32)));
    ASSIGN_OR_RETURN(slot->done, backend_.CreateEvent());
    if (host_memory) continue;
    ASSIGN_OR_RETURN(slot->logits, backend_.AllocateHost(limits_.max_logit_rows * row_bytes));
  }
  if (limits_.pipeline_depth > 0) {
    ASSIGN_OR_RETURN(drawn_, backend_.Allocate(limits_.max_seqs * SizeOf(DType::kI32)));
  }

  const ModelInput prompt = MakeLoneInput(tokens, 0, 1, cache_);
  const ModelInput decode = MakeLoneInput(std::span(tokens).first(1), 0, 1, cache_);
  // The first forward pass is not timed: the weights may not be in memory yet, so this pass may be
  // much slower than later ones.
  ASSIGN_OR_RETURN(TensorView logits, model_.Forward(decode, cache_));
  ASSIGN_OR_RETURN(logits, ToHost(logits, *slots_[0]));
  RETURN_IF_ERROR(backend_.Synchronize());
  if (!std::ranges::all_of(LogitRow(logits, 0), [](float x) { return std::isfinite(x); })) {
    base::Log(base::LogLevel::kWarning, "engine", "the warm-up's logits are not finite",
              {{"because", WhyNotFinite(decode, 0)}});
  }
  const auto time = [&](const ModelInput& input) -> absl::StatusOr<absl::Duration> {
    const absl::Time begin = clock.Now();
    RETURN_IF_ERROR(model_.Forward(input, cache_).status());
    RETURN_IF_ERROR(backend_.Synchronize());
    return clock.Now() - begin;
  };
  WarmUpTimes times;
  ASSIGN_OR_RETURN(times.prompt, time(prompt));
  ASSIGN_OR_RETURN(times.decode, time(decode));
  return times;
}

absl::Status Runner::Submit(const StepPlan& plan) {
  QUIRE_CHECK(num_submitted_ - num_collected_ <= limits_.pipeline_depth)
      << num_submitted_ - num_collected_ << " steps are in flight";
  const absl::Status status = Enqueue(plan, *slots_[num_submitted_ % 2]);
  if (status.ok()) {
    ++num_submitted_;
  } else {
    // A part of the failed step may have been enqueued. The next step gets the same slot, so that
    // part must end first.
    backend_.Synchronize().IgnoreError();
  }
  return status;
}

absl::Status Runner::Enqueue(const StepPlan& plan, Slot& slot) {
  builder_.Build(plan, slot.input);
  slot.input.drawn = TensorView(drawn_.data(), DType::kI32, {limits_.max_seqs});
  const int64_t drawn_bytes = int64_t{ListRowWork(plan, slot.result.works)} * SizeOf(DType::kI32);
  slot.result.rows.clear();

  ASSIGN_OR_RETURN(TensorView logits, model_.Forward(slot.input, cache_));
  ASSIGN_OR_RETURN(logits, ToHost(logits, slot));
  slot.host_logits = logits;
  AddSampleRows(plan, slot);
  QUIRE_CHECK(drawn_bytes <= slot.drawn.bytes()) << "a step draws more tokens than its limits";
  RETURN_IF_ERROR(backend_.CallHost({.run = [this, &slot] { HandleRows(slot); },
                                     .output = slot.drawn.data(),
                                     .output_bytes = drawn_bytes}));
  if (limits_.pipeline_depth > 0) {
    RETURN_IF_ERROR(backend_.CopyToDevice(drawn_.data(), slot.drawn.data(), drawn_bytes));
  }
  return backend_.Mark(*slot.done);
}

absl::StatusOr<TensorView> Runner::ToHost(const TensorView& logits, Slot& slot) {
  if (slot.logits.bytes() == 0) return logits;
  RETURN_IF_ERROR(backend_.CopyToHost(slot.logits.data(), logits.raw(), logits.num_bytes()));
  return TensorView(slot.logits.data(), DType::kF32, {logits.dim(0), logits.dim(1)});
}

void Runner::AddSampleRows(const StepPlan& plan, Slot& slot) {
  slot.sample_rows.clear();
  slot.histories.clear();
  for (const RowWork& work : slot.result.works) {
    const StepPlanEntry& entry = plan.entries[work.entry];
    const Sequence& sequence = *entry.sequence;
    const Request& request = *sequence.request;
    const bool lacks_a_token = entry.token_from_previous >= 0;
    if (lacks_a_token && kernels::sampling::HasPenalties(request.params.sampling)) {
      slot.histories.push_back({.row = slot.sample_rows.size(),
                                .source = entry.token_from_previous,
                                .tokens = sequence.tokens});
    }
    slot.sample_rows.push_back(MakeSampleRow(work, request, sequence.tokens,
                                             sequence.num_generated() + (lacks_a_token ? 1 : 0)));
  }
}

void Runner::HandleRows(Slot& slot) {
  for (Slot::History& history : slot.histories) {
    history.tokens.push_back(last_drawn_[history.source]);
    slot.sample_rows[history.row].tokens = history.tokens;
  }
  sampler_.Sample(slot.host_logits, slot.sample_rows, parallel_for_, slot.result.rows);
  last_drawn_.clear();
  for (size_t i = 0; i < slot.result.works.size(); ++i) {
    const RowWork& work = slot.result.works[i];
    const absl::StatusOr<SampledRow>& row = slot.result.rows[i];
    if (work.kind != RowWork::Kind::kDraw) continue;
    last_drawn_.resize(work.token + 1);
    // When a draw fails, the sequence ends. The next step may be in flight already and read this
    // id, but its results for the sequence are discarded. So any valid id will do.
    last_drawn_[work.token] = row.ok() ? row->id : 0;
  }
  std::ranges::copy(last_drawn_, static_cast<int32_t*>(slot.drawn.data()));
}

absl::Status Runner::Collect(StepResult& result) {
  QUIRE_CHECK(num_collected_ < num_submitted_) << "no step is in flight";
  Slot& slot = *slots_[num_collected_++ % 2];
  RETURN_IF_ERROR(backend_.Wait(*slot.done));
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
