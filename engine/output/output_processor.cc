#include "engine/output/output_processor.h"

#include <utility>

#include "base/check.h"
#include "engine/output/replay.h"
#include "engine/output/stop_matcher.h"
#include "engine/request/delta_buffer.h"

namespace quire::engine {

OutputProcessor::OutputProcessor(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

OutputProcessor::~OutputProcessor() = default;

void OutputProcessor::Add(SequenceId first_id, const std::shared_ptr<const Request>& request) {
  const auto patterns = std::make_shared<const StopPatterns>(request->params.stop.stop);
  for (int32_t k = 0; k < request->params.sampling.num_samples(); ++k) {
    ReplayedSample* const replayed = request->is_resumed() ? request->replayed[k].get() : nullptr;
    if (replayed != nullptr && replayed->has_ended()) continue;
    SampleOutput output = replayed != nullptr ? std::move(replayed->output)
                                              : SampleOutput(tokenizer_, patterns, *request, k);
    const bool is_new = states_.emplace(first_id + k, State{request, std::move(output)}).second;
    QUIRE_CHECK(is_new) << "sequence " << first_id + k << " was added before";
  }
}

OutputProcessor::State& OutputProcessor::Find(SequenceId id) {
  const auto it = states_.find(id);
  QUIRE_CHECK(it != states_.end()) << "sequence " << id << " is unknown";
  return it->second;
}

Output OutputProcessor::Push(SequenceId id, kernels::SampledRow drawn,
                             const TokenVerdict& verdict) {
  State& state = Find(id);
  return state.output.Push(*state.request, std::move(drawn), verdict);
}

Output OutputProcessor::Cut(SequenceId id, FinishReason reason) {
  State& state = Find(id);
  return state.output.Cut(*state.request, reason);
}

TokenDelta OutputProcessor::Whole(const Request& request, int32_t index,
                                  std::span<const int32_t> tokens,
                                  const TokenVerdict& verdict) const {
  const auto patterns = std::make_shared<const StopPatterns>(request.params.stop.stop);
  SampleOutput output(tokenizer_, patterns, request, index);
  DeltaBuffer whole;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool is_last = i + 1 == tokens.size();
    whole.Add(output.Push(request, {.id = tokens[i]}, is_last ? verdict : TokenVerdict()).delta);
  }
  return std::move(whole.Take().front());
}

void OutputProcessor::Remove(SequenceId id) { states_.erase(id); }

}  // namespace quire::engine
