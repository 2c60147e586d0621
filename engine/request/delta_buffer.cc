#include "engine/request/delta_buffer.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace quire::engine {
namespace {

int64_t LogprobBytes(const std::vector<PositionLogprobs>& logprobs) {
  size_t bytes = logprobs.size() * sizeof(PositionLogprobs);
  for (const PositionLogprobs& position : logprobs) {
    bytes += position.top.size() * sizeof(TokenLogprob);
  }
  return static_cast<int64_t>(bytes);
}

int64_t NumBytes(const TokenDelta& delta) {
  return static_cast<int64_t>(delta.text.size() + delta.token_ids.size() * sizeof(int32_t)) +
         LogprobBytes(delta.logprobs) + LogprobBytes(delta.prompt_logprobs);
}

template <typename T>
void MoveToEnd(std::vector<T>& from, std::vector<T>& to) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

void Merge(TokenDelta from, TokenDelta& to) {
  to.text.append(from.text);
  MoveToEnd(from.token_ids, to.token_ids);
  MoveToEnd(from.logprobs, to.logprobs);
  MoveToEnd(from.prompt_logprobs, to.prompt_logprobs);
  if (from.finish_reason != FinishReason::kNone) to.finish_reason = from.finish_reason;
  if (!from.stop_string.empty()) to.stop_string = std::move(from.stop_string);
  if (from.stop_token_id.has_value()) to.stop_token_id = from.stop_token_id;
  to.seed = from.seed;
  if (from.usage.has_value()) to.usage = from.usage;
  if (from.score.has_value()) to.score = from.score;
}

}  // namespace

void DeltaBuffer::Add(TokenDelta delta) {
  ++num_deltas_;
  num_bytes_ += NumBytes(delta);
  const auto it = std::ranges::find(merged_, delta.index, &TokenDelta::index);
  if (it == merged_.end()) {
    merged_.push_back(std::move(delta));
  } else {
    Merge(std::move(delta), *it);
  }
}

std::vector<TokenDelta> DeltaBuffer::Take() {
  num_deltas_ = 0;
  num_bytes_ = 0;
  return std::exchange(merged_, {});
}

}  // namespace quire::engine
