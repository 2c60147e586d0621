#include "server/call/delta_buffer.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace quire::server {
namespace {

int64_t LogprobBytes(const std::vector<engine::PositionLogprobs>& logprobs) {
  size_t bytes = logprobs.size() * sizeof(engine::PositionLogprobs);
  for (const engine::PositionLogprobs& position : logprobs) {
    bytes += position.top.size() * sizeof(engine::TokenLogprob);
  }
  return static_cast<int64_t>(bytes);
}

int64_t NumBytes(const engine::TokenDelta& delta) {
  return static_cast<int64_t>(delta.text.size() + delta.token_ids.size() * sizeof(int32_t)) +
         LogprobBytes(delta.logprobs) + LogprobBytes(delta.prompt_logprobs);
}

template <typename T>
void MoveToEnd(std::vector<T>& from, std::vector<T>& to) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

void Merge(engine::TokenDelta from, engine::TokenDelta& to) {
  to.text.append(from.text);
  MoveToEnd(from.token_ids, to.token_ids);
  MoveToEnd(from.logprobs, to.logprobs);
  MoveToEnd(from.prompt_logprobs, to.prompt_logprobs);
  if (from.finish_reason != engine::FinishReason::kNone) to.finish_reason = from.finish_reason;
  if (!from.stop_string.empty()) to.stop_string = std::move(from.stop_string);
  if (from.stop_token_id.has_value()) to.stop_token_id = from.stop_token_id;
  to.seed = from.seed;
  if (from.usage.has_value()) to.usage = from.usage;
}

}  // namespace

void DeltaBuffer::Add(engine::TokenDelta delta) {
  ++num_deltas_;
  num_bytes_ += NumBytes(delta);
  const auto it = std::ranges::find(merged_, delta.index, &engine::TokenDelta::index);
  if (it == merged_.end()) {
    merged_.push_back(std::move(delta));
  } else {
    Merge(std::move(delta), *it);
  }
}

std::vector<engine::TokenDelta> DeltaBuffer::Take() {
  num_deltas_ = 0;
  num_bytes_ = 0;
  return std::exchange(merged_, {});
}

}  // namespace quire::server
