#include "engine/runner/row_work.h"

namespace quire::engine {
namespace {

// The row of position p gives the log-probability of the token at p + 1.
void ListPrompt(const RowWork& first, const StepPlanEntry& entry, std::vector<RowWork>& works) {
  const Request& request = *entry.sequence->request;
  const int64_t first_index = entry.first_index + entry.num_tokens - entry.num_logit_rows + 1;
  RowWork work = first;
  work.kind = RowWork::Kind::kPrompt;
  work.num_top = request.params.output.prompt_logprobs;
  for (work.index = first_index; work.index < std::ssize(request.prompt_ids); ++work.index) {
    if (work.row == first.row + entry.num_logit_rows) return;
    work.given = request.prompt_ids[work.index];
    works.push_back(work);
    ++work.row;
  }
}

// A continuation of m tokens has m rows. The first is the row of the prompt's last token, which all
// continuations share.
void ListScores(const RowWork& first, const StepPlanEntry& entry, std::vector<RowWork>& works) {
  const Sequence& sequence = *entry.sequence;
  const Request& request = *sequence.request;
  RowWork work = first;
  work.kind = RowWork::Kind::kScore;
  work.num_top = 1;
  work.sample = sequence.sample_index;
  if (sequence.num_generated() == 0) {
    work.row = first.row + entry.num_logit_rows - 1;
    for (int32_t k = 0; k < entry.num_samples; ++k, ++work.sample) {
      work.given = request.continuation_ids[work.sample].front();
      works.push_back(work);
    }
    return;
  }
  work.index =
      entry.first_index + entry.num_tokens - entry.num_logit_rows - sequence.prompt_len() + 1;
  for (int32_t i = 0; i < entry.num_logit_rows; ++i, ++work.row, ++work.index) {
    work.given = request.continuation_ids[work.sample][work.index];
    works.push_back(work);
  }
}

void ListCheck(const RowWork& first, const StepPlanEntry& entry, std::vector<RowWork>& works) {
  if (entry.num_logit_rows == 0) return;
  RowWork work = first;
  work.kind = RowWork::Kind::kCheck;
  work.given = entry.sequence->tokens.back();  // any token will do
  works.push_back(work);
}

void ListBest(const RowWork& first, const StepPlanEntry& entry, std::vector<RowWork>& works) {
  if (entry.num_samples == 0) return;
  RowWork work = first;
  work.kind = RowWork::Kind::kTopK;
  work.row = first.row + entry.num_logit_rows - 1;
  work.sample = entry.sequence->sample_index;
  work.num_top = entry.sequence->request->num_candidates;
  works.push_back(work);
}

void ListDraws(const RowWork& first, int32_t first_token, const StepPlan& plan,
               const StepPlanEntry& entry, std::vector<RowWork>& works) {
  RowWork work = first;
  work.row = first.row + entry.num_logit_rows - 1 - entry.num_drafts;
  work.token = first_token;
  work.sample = entry.sequence->sample_index;
  const GenerateParams& params = entry.sequence->request->params;
  work.num_top = params.output.top_logprobs;
  if (params.ranks_samples()) work.num_top = work.num_top.value_or(0);
  work.kind = RowWork::Kind::kVerify;
  for (; work.index < entry.num_drafts; ++work.index, ++work.row, ++work.token) {
    work.given = plan.drafts[entry.first_draft + work.index];
    works.push_back(work);
  }
  work.kind = RowWork::Kind::kDraw;
  work.given = -1;
  for (int32_t k = 0; k < entry.num_samples; ++k, ++work.sample, ++work.token) {
    works.push_back(work);
  }
}

}  // namespace

int32_t ListRowWork(const StepPlan& plan, std::vector<RowWork>& works) {
  works.clear();
  RowWork first;  // of an entry
  int32_t num_tokens = 0;
  for (const StepPlanEntry& entry : plan.entries) {
    const Request& request = *entry.sequence->request;
    if (request.params.output.prompt_logprobs) ListPrompt(first, entry, works);
    if (request.pins != 0) {
      ListCheck(first, entry, works);
    } else if (request.is_scoring()) {
      ListScores(first, entry, works);
    } else if (request.has_beams()) {
      ListBest(first, entry, works);
    } else {
      ListDraws(first, num_tokens, plan, entry, works);
    }
    num_tokens += entry.num_draws();
    first.row += entry.num_logit_rows;
    ++first.entry;
  }
  return num_tokens;
}

kernels::SampleRow MakeSampleRow(const RowWork& work, const Request& request,
                                 std::span<const int32_t> tokens, int64_t num_generated) {
  const bool lists = work.kind == RowWork::Kind::kTopK;
  const bool wants_rank = work.num_top && request.params.output.logprob_text && !lists;
  if (!work.draws() && !lists) {
    return {
        .row = work.row, .given = work.given, .num_top = work.num_top, .wants_rank = wants_rank};
  }
  const StopParams& stop = request.params.stop;
  const bool must_go_on = stop.must_go_on(num_generated);
  return {.row = work.row,
          .draw = work.token,
          .num_top = lists ? std::nullopt : work.num_top,
          .wants_rank = wants_rank,
          .num_best = lists ? work.num_top.value_or(0) : 0,
          .params = request.params.sampling,
          .seed = request.seed + static_cast<uint64_t>(work.sample),
          .position = num_generated,
          .biases = request.params.sampling.logit_bias,
          .allowed = &request.allowed_ids,
          .banned = must_go_on ? &request.stop_ids : nullptr,
          .bans_end_ids = must_go_on && !stop.ignore_eos,
          .tokens = tokens,
          .prompt_len = std::ssize(request.prompt_ids)};
}

}  // namespace quire::engine
