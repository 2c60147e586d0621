#include "engine/sharing/session_content.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::engine {

SessionContent::SessionContent(std::shared_ptr<const PrefixContent> prefix, bool owns_prefix)
    : num_tokens_(std::ssize(prefix->ids)), prefix_(std::move(prefix)), owns_prefix_(owns_prefix) {
  // The ids live as long as the content of the prefix.
  chunks_.push_back(
      {.ids = std::shared_ptr<const TokenIds>(prefix_, &prefix_->ids), .num_used = num_tokens_});
}

int64_t SessionContent::num_bytes() const {
  int64_t bytes = num_tokens_ * static_cast<int64_t>(sizeof(int32_t));
  if (conversation_ == nullptr) return bytes;
  return bytes + std::ssize(*conversation_->text) + NumBytes(*conversation_->messages);
}

void SessionContent::NoteComputed(int64_t num_tokens) {
  num_computed_ = std::max(num_computed_, std::min(num_tokens, num_tokens_));
}

TokenIds SessionContent::Ids(int64_t begin, int64_t end) const {
  TokenIds ids;
  ids.reserve(static_cast<size_t>(end - begin));
  int64_t chunk_begin = 0;
  for (const Chunk& chunk : chunks_) {
    const int64_t from = std::clamp(begin - chunk_begin, int64_t{0}, chunk.num_used);
    const int64_t to = std::clamp(end - chunk_begin, int64_t{0}, chunk.num_used);
    ids.insert(ids.end(), chunk.ids->begin() + from, chunk.ids->begin() + to);
    chunk_begin += chunk.num_used;
  }
  return ids;
}

bool SessionContent::begins_with_prefix() const {
  if (prefix_ == nullptr) return true;
  const int64_t len = std::ssize(prefix_->ids);
  return num_tokens_ >= len && Ids(0, len) == prefix_->ids;
}

SessionCopy SessionContent::Copy() const {
  const int64_t prefix_len = prefix_ == nullptr ? 0 : std::ssize(prefix_->ids);
  SessionCopy copy = {.ids = Ids(prefix_len, num_tokens_)};
  if (conversation_ == nullptr) return copy;
  const auto* const before =
      prefix_ == nullptr ? nullptr : std::get_if<ChatMessages>(&prefix_->given);
  const SessionConversation::Mark& last = conversation_->marks.back();
  const auto& messages = *conversation_->messages;
  copy.messages.emplace(messages.begin() + (before == nullptr ? 0 : std::ssize(*before)),
                        messages.begin() + static_cast<std::ptrdiff_t>(last.num_messages));
  if (last.begins_answer) copy.answer_len = last.answer_end - last.num_tokens;
  return copy;
}

void SessionContent::Append(TokenIds ids) {
  conversation_ = nullptr;
  if (ids.empty()) return;
  const int64_t size = std::ssize(ids);
  chunks_.push_back({.ids = std::make_shared<const TokenIds>(std::move(ids)), .num_used = size});
  num_tokens_ += size;
}

void SessionContent::AppendGenerated(TokenIds ids) {
  const std::shared_ptr<const SessionConversation> before = conversation_;
  Append(std::move(ids));
  if (before == nullptr) return;
  auto after = std::make_shared<SessionConversation>(*before);
  after->marks.back().answer_end = num_tokens_;
  conversation_ = std::move(after);
}

SessionContent SessionContent::First(int64_t num_tokens) const {
  QUIRE_CHECK(num_tokens >= 0 && num_tokens <= num_tokens_) << num_tokens;
  if (num_tokens == num_tokens_) return *this;
  SessionContent first;
  first.prefix_ = prefix_;
  first.owns_prefix_ = owns_prefix_;
  for (const Chunk& chunk : chunks_) {
    const int64_t left = num_tokens - first.num_tokens_;
    if (left == 0) break;
    first.chunks_.push_back({.ids = chunk.ids, .num_used = std::min(chunk.num_used, left)});
    first.num_tokens_ += first.chunks_.back().num_used;
  }
  first.num_computed_ = std::min(num_computed_, num_tokens);
  if (conversation_ == nullptr) return first;

  auto conversation = std::make_shared<SessionConversation>(*conversation_);
  auto& marks = conversation->marks;
  while (!marks.empty() && marks.back().num_tokens > num_tokens) marks.pop_back();
  if (marks.empty() || marks.back().answer_end < num_tokens) return first;
  marks.back().answer_end = num_tokens;
  first.conversation_ = std::move(conversation);
  return first;
}

}  // namespace quire::engine
