#include "engine/runner/runner.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <utility>

#include "base/logging.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "engine/batch/lone_input.h"
#include "engine/kv/kv_check.h"

namespace quire::engine {
namespace {

// Returns one row of logits, with every id of the vocabulary of the model, padding included.
std::span<const float> LogitRow(const kernels::TensorView& logits, int64_t row) {
  return {logits.data<const float>() + row * logits.dim(1), static_cast<size_t>(logits.dim(1))};
}

}  // namespace

Runner::Runner(kernels::Backend& backend, Model& model, KvCache& cache, const BlockManager& blocks,
               Sampler sampler)
    : backend_(backend),
      model_(model),
      cache_(cache),
      builder_(blocks),
      sampler_(std::move(sampler)),
      parallel_for_([&backend](int64_t n, const std::function<void(int64_t)>& work) {
        backend.RunOnHost(n, work);
      }) {}

absl::StatusOr<WarmUpTimes> Runner::WarmUp(const std::vector<int32_t>& tokens,
                                           const base::Clock& clock) {
  const ModelInput prompt = MakeLoneInput(tokens, 0, 1, cache_);
  const ModelInput decode = MakeLoneInput(std::span(tokens).first(1), 0, 1, cache_);
  // The first forward pass is not timed, because it reads every page of the weights.
  ASSIGN_OR_RETURN(const kernels::TensorView logits, model_.Forward(decode, cache_));
  if (!std::ranges::all_of(LogitRow(logits, 0), [](float x) { return std::isfinite(x); })) {
    base::Log(base::LogLevel::kWarning, "engine", "the warm-up's logits are not finite",
              {{"because", WhyNotFinite(decode, 0)}});
  }
  const auto time = [&](const ModelInput& input) -> absl::StatusOr<absl::Duration> {
    const absl::Time begin = clock.Now();
    RETURN_IF_ERROR(model_.Forward(input, cache_).status());
    return clock.Now() - begin;
  };
  WarmUpTimes times;
  ASSIGN_OR_RETURN(times.prompt, time(prompt));
  ASSIGN_OR_RETURN(times.decode, time(decode));
  return times;
}

absl::Status Runner::Run(const StepPlan& plan, StepResult& result) {
  builder_.Build(plan, input_);
  ASSIGN_OR_RETURN(const kernels::TensorView logits, model_.Forward(input_, cache_));
  HandleRows(plan, logits, result);
  return absl::OkStatus();
}

void Runner::HandleRows(const StepPlan& plan, const kernels::TensorView& logits,
                        StepResult& result) {
  ListRowWork(plan, result.works);
  sample_rows_.clear();
  for (const RowWork& work : result.works) {
    const Sequence& sequence = *plan.entries[work.entry].sequence;
    const Request& request = *sequence.request;
    sample_rows_.push_back({.logits = LogitRow(logits, work.row),
                            .given = work.given,
                            .num_top = work.num_top,
                            .request = &request,
                            .seed = request.seed + static_cast<uint64_t>(work.sample),
                            .tokens = sequence.tokens,
                            .prompt_len = sequence.prompt_len()});
  }
  sampler_.Sample(sample_rows_, parallel_for_, result.rows);
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
