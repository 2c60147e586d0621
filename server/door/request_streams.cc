#include "server/door/request_streams.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace quire::server::door {
namespace {

// The bytes that a DATA frame costs the server in addition to its payload: a slice and an entry in
// a buffer.
constexpr size_t kFrameOverhead = 64;

}  // namespace

RequestStreams::~RequestStreams() {
  while (!streams_.empty()) Close(streams_.begin()->first);
}

void RequestStreams::Open(uint32_t id, Clock::time_point now) {
  StartWaiting(streams_[id], now);
  counters_.streams.fetch_add(1, std::memory_order_relaxed);
}

void RequestStreams::Close(uint32_t id) {
  const auto it = streams_.find(id);
  if (it == streams_.end()) return;
  Release(it->second);
  streams_.erase(it);
  counters_.streams.fetch_sub(1, std::memory_order_relaxed);
}

bool RequestStreams::BeginData(uint32_t id) {
  const auto it = streams_.find(id);
  if (it == streams_.end()) return false;
  Hold(it->second, kFrameOverhead);
  return true;
}

std::optional<Refusal> RequestStreams::TakeData(uint32_t id, std::span<const uint8_t> bytes,
                                                Clock::time_point now) {
  const auto it = streams_.find(id);
  if (it == streams_.end()) return std::nullopt;
  Hold(it->second, bytes.size());
  return ReadMessages(it->second, bytes, now);
}

void RequestStreams::EndRequest(uint32_t id) {
  if (const auto it = streams_.find(id); it != streams_.end()) Release(it->second);
}

void RequestStreams::Answer(uint32_t id, bool is_data) {
  const auto it = streams_.find(id);
  if (it == streams_.end()) return;
  if (!is_data) {
    it->second.answered = true;
  } else if (!it->second.waiting) {
    Release(it->second);
  }
}

bool RequestStreams::IsAnswered(uint32_t id) const {
  const auto it = streams_.find(id);
  return it != streams_.end() && it->second.answered;
}

bool RequestStreams::are_too_many() const {
  const size_t has = streams_.size();
  if (has > limits_.streams) return true;
  const auto open = static_cast<size_t>(counters_.streams.load(std::memory_order_relaxed));
  return has > 1 && has + open > limits_.total_streams + 1;
}

std::optional<uint32_t> RequestStreams::Largest() const {
  const auto largest = std::ranges::max_element(
      streams_, {}, [](const auto& stream) { return stream.second.held_bytes; });
  if (largest == streams_.end()) return std::nullopt;
  return largest->first;
}

std::vector<uint32_t> RequestStreams::Late(Clock::time_point now) const {
  std::vector<uint32_t> late;
  if (!waits()) return late;
  for (const auto& [id, stream] : streams_) {
    if (stream.waiting && now - stream.since >= limits_.message_time) late.push_back(id);
  }
  return late;
}

std::optional<Refusal> RequestStreams::ReadMessages(Stream& stream, std::span<const uint8_t> bytes,
                                                    Clock::time_point now) {
  while (!bytes.empty()) {
    if (stream.prefix_bytes < stream.prefix.size()) {
      if (stream.prefix_bytes == 0) StartWaiting(stream, now);
      stream.prefix[stream.prefix_bytes++] = bytes.front();
      bytes = bytes.subspan(1);
      if (stream.prefix_bytes < stream.prefix.size()) continue;
      for (const uint8_t byte : std::span(stream.prefix).subspan<1>()) {
        stream.message_left = stream.message_left << 8 | byte;
      }
      if (auto refusal = CheckPrefix(stream)) return refusal;
    }
    const size_t take = std::min<size_t>(stream.message_left, bytes.size());
    stream.message_left -= static_cast<uint32_t>(take);
    bytes = bytes.subspan(take);
    if (stream.message_left > 0) break;
    // A whole message has arrived. The bytes of a stream's first message are released now. The
    // bytes of later messages count as held until an answer shows that the server has taken them,
    // or until the request ends.
    stream.prefix_bytes = 0;
    if (!std::exchange(stream.had_message, true)) Release(stream);
    if (std::exchange(stream.waiting, false)) --num_waiting_;
  }
  return std::nullopt;
}

std::optional<Refusal> RequestStreams::CheckPrefix(const Stream& stream) const {
  if (const uint8_t flag = stream.prefix[0]; flag != 0) {
    return Refusal{
        .reason = Refused::kCompressed,
        .code = kInternal,
        .message = absl::StrFormat("message: want flag 0 (not compressed), got %d", flag)};
  }
  if (stream.message_left <= limits_.message_bytes) return std::nullopt;
  return Refusal{.reason = Refused::kMessageSize,
                 .code = kResourceExhausted,
                 .message = absl::StrFormat("message: want at most %d bytes, got %d",
                                            limits_.message_bytes, stream.message_left)};
}

void RequestStreams::StartWaiting(Stream& stream, Clock::time_point now) {
  stream.since = now;
  if (!std::exchange(stream.waiting, true)) ++num_waiting_;
}

void RequestStreams::Hold(Stream& stream, size_t bytes) {
  stream.held_bytes += bytes;
  unfinished_bytes_ += bytes;
  counters_.unfinished_bytes.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
}

void RequestStreams::Release(Stream& stream) {
  unfinished_bytes_ -= stream.held_bytes;
  counters_.unfinished_bytes.fetch_sub(static_cast<int64_t>(stream.held_bytes),
                                       std::memory_order_relaxed);
  stream.held_bytes = 0;
  if (std::exchange(stream.waiting, false)) --num_waiting_;
}

}  // namespace quire::server::door
