#include "engine/output/sample_output.h"

#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace quire::engine {

SampleOutput::SampleOutput(const text::Tokenizer& tokenizer,
                           std::shared_ptr<const StopPatterns> patterns, const Request& request,
                           int32_t index)
    : index_(index),
      detokenizer_(tokenizer, request.params.output.skip_special_tokens, request.prompt_rest),
      matcher_(std::move(patterns), request.params.stop.include_stop),
      echo_pending_(request.params.output.echo && request.params.output.text) {}

TokenDelta SampleOutput::NewDelta(const Request& request) {
  TokenDelta delta = {.index = index_, .seed = request.seed + static_cast<uint64_t>(index_)};
  if (std::exchange(echo_pending_, false)) delta.text = request.prompt_text;
  return delta;
}

int32_t SampleOutput::PushText(int32_t id, bool may_stop, std::string& released) {
  const std::string_view hidden = detokenizer_.HiddenBytes(id);
  if (hidden.empty()) return matcher_.Push(detokenizer_.Push(id), may_stop, released);
  const std::string unfinished = text::IncrementalDetokenizer(detokenizer_).Flush();
  return matcher_.PushHidden(unfinished, hidden, may_stop, released);
}

Output SampleOutput::Push(const Request& request, kernels::SampledRow drawn,
                          const TokenVerdict& verdict) {
  QUIRE_CHECK(!finished_) << "sample " << index_ << " has finished";
  const StopParams& stop = request.params.stop;
  const OutputOptions& options = request.params.output;
  TokenDelta delta = NewDelta(request);
  delta.finish_reason = verdict.finish_reason;
  delta.stop_token_id = verdict.stop_token_id;

  const bool may_stop = !stop.must_go_on(num_tokens_);
  ++num_tokens_;
  if (options.text || !stop.stop.empty()) {
    std::string released;
    int32_t stopped = -1;
    if (!verdict.stop_token_id || stop.include_stop) {
      stopped = PushText(drawn.id, may_stop, released);
    }
    if (stopped < 0 && delta.finish_reason != FinishReason::kNone) {
      stopped = matcher_.Push(detokenizer_.Flush(), may_stop, released);
      if (stopped < 0) released += matcher_.Flush();
    }
    if (stopped >= 0) {
      delta.finish_reason = FinishReason::kStop;
      delta.stop_string = stop.stop[stopped];
      delta.stop_token_id.reset();
    }
    if (options.text) delta.text += released;
  }
  finished_ = delta.finish_reason != FinishReason::kNone;

  if (options.token_ids) delta.token_ids.push_back(drawn.id);
  if (drawn.logprobs) delta.logprobs.push_back(*std::move(drawn.logprobs));
  const bool has_content =
      finished_ || !delta.text.empty() || !delta.token_ids.empty() || !delta.logprobs.empty();
  return {.delta = std::move(delta), .has_content = has_content};
}

Output SampleOutput::Cut(const Request& request, FinishReason reason) {
  QUIRE_CHECK(!finished_) << "sample " << index_ << " has finished";
  finished_ = true;
  TokenDelta delta = NewDelta(request);
  delta.finish_reason = reason;
  if (request.params.output.text) {
    std::string released;
    const int32_t stopped = matcher_.Push(detokenizer_.Flush(), false, released);
    QUIRE_CHECK(stopped < 0);
    delta.text += released + matcher_.Flush();
  }
  return {.delta = std::move(delta), .has_content = true};
}

}  // namespace quire::engine
