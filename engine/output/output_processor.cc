#include "engine/output/output_processor.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "engine/output/stop_matcher.h"
#include "text/tokenizer/incremental_detokenizer.h"

namespace quire::engine {

struct OutputProcessor::State {
  std::shared_ptr<const Request> request;
  int32_t index = 0;
  text::IncrementalDetokenizer detokenizer;
  StopMatcher matcher;
  int64_t num_tokens = 0;
  bool echo_pending = false;
  bool finished = false;

  const GenerateParams& params() const { return request->params; }
};

OutputProcessor::OutputProcessor(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

OutputProcessor::~OutputProcessor() = default;

void OutputProcessor::Add(SequenceId first_id, const std::shared_ptr<const Request>& request) {
  const GenerateParams& params = request->params;
  const auto patterns = std::make_shared<const StopPatterns>(params.stop.stop);
  for (int32_t k = 0; k < params.sampling.n; ++k) {
    auto state = std::make_unique<State>(State{
        .request = request,
        .index = k,
        .detokenizer = text::IncrementalDetokenizer(tokenizer_, params.output.skip_special_tokens,
                                                    request->prompt_rest),
        .matcher = StopMatcher(patterns, params.stop.include_stop),
        .echo_pending = params.output.echo && params.output.text,
    });
    const bool is_new = states_.emplace(first_id + k, std::move(state)).second;
    QUIRE_CHECK(is_new) << "sequence " << first_id + k << " was added before";
  }
}

OutputProcessor::State& OutputProcessor::Find(SequenceId id) {
  const auto it = states_.find(id);
  QUIRE_CHECK(it != states_.end()) << "sequence " << id << " is unknown";
  QUIRE_CHECK(!it->second->finished) << "sequence " << id << " has finished";
  return *it->second;
}

TokenDelta OutputProcessor::NewDelta(State& state) const {
  TokenDelta delta = {.index = state.index,
                      .seed = state.request->seed + static_cast<uint64_t>(state.index)};
  if (std::exchange(state.echo_pending, false)) delta.text = state.request->prompt_text;
  return delta;
}

Output OutputProcessor::Push(SequenceId id, kernels::SampledRow drawn,
                             const TokenVerdict& verdict) {
  State& state = Find(id);
  const StopParams& stop = state.params().stop;
  const OutputOptions& options = state.params().output;
  TokenDelta delta = NewDelta(state);
  delta.finish_reason = verdict.finish_reason;
  delta.stop_token_id = verdict.stop_token_id;

  const bool may_stop = !stop.must_go_on(state.num_tokens);
  ++state.num_tokens;
  if (options.text || !stop.stop.empty()) {
    std::string released;
    int32_t stopped = -1;
    if (!verdict.stop_token_id || stop.include_stop) {
      stopped = state.matcher.Push(state.detokenizer.Push(drawn.id), may_stop, released);
    }
    if (stopped < 0 && delta.finish_reason != FinishReason::kNone) {
      stopped = state.matcher.Push(state.detokenizer.Flush(), may_stop, released);
      if (stopped < 0) released += state.matcher.Flush();
    }
    if (stopped >= 0) {
      delta.finish_reason = FinishReason::kStop;
      delta.stop_string = stop.stop[stopped];
      delta.stop_token_id.reset();
    }
    if (options.text) delta.text += released;
  }
  state.finished = delta.finish_reason != FinishReason::kNone;

  if (options.token_ids) delta.token_ids.push_back(drawn.id);
  if (drawn.logprobs) delta.logprobs.push_back(*std::move(drawn.logprobs));
  const bool has_content =
      state.finished || !delta.text.empty() || !delta.token_ids.empty() || !delta.logprobs.empty();
  return {.delta = std::move(delta), .has_content = has_content};
}

Output OutputProcessor::Cut(SequenceId id, FinishReason reason) {
  State& state = Find(id);
  state.finished = true;
  TokenDelta delta = NewDelta(state);
  delta.finish_reason = reason;
  if (state.params().output.text) {
    std::string released;
    const int32_t stopped = state.matcher.Push(state.detokenizer.Flush(), false, released);
    QUIRE_CHECK(stopped < 0);
    delta.text += released + state.matcher.Flush();
  }
  return {.delta = std::move(delta), .has_content = true};
}

void OutputProcessor::Remove(SequenceId id) { states_.erase(id); }

}  // namespace quire::engine
