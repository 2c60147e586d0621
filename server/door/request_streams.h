#pragma once

// The open streams of one connection. Finds gRPC's messages in the DATA of each stream. Counts the
// bytes that the server holds for the stream's unfinished message.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "server/door/door_counters.h"
#include "server/door/http2_limits.h"
#include "server/door/rate.h"

namespace quire::server::door {

class RequestStreams {
 public:
  // Borrows `limits` and `counters`. `counters` has the totals of unfinished bytes and of streams
  // over all connections.
  RequestStreams(const Http2Limits& limits, DoorCounters& counters)
      : limits_(limits), counters_(counters) {}
  ~RequestStreams();
  RequestStreams(const RequestStreams&) = delete;
  RequestStreams& operator=(const RequestStreams&) = delete;

  // Adds a stream, which waits for its message from now on.
  void Open(uint32_t id, Clock::time_point now);
  // Removes a stream. Close and the functions below ignore a stream that is not open.
  void Close(uint32_t id);

  // Must be called when a DATA frame of the stream begins. Returns false when the stream is not
  // open.
  bool BeginData(uint32_t id);
  // Reads the messages in a piece of DATA, without padding. Returns a refusal when the stream must
  // be refused.
  std::optional<Refusal> TakeData(uint32_t id, std::span<const uint8_t> bytes,
                                  Clock::time_point now);
  // Must be called when the client will send nothing more on this stream.
  void EndRequest(uint32_t id);
  // Must be called when the server has sent HEADERS or, with `is_data`, DATA on this stream.
  void Answer(uint32_t id, bool is_data);

  bool Has(uint32_t id) const { return streams_.contains(id); }
  bool IsAnswered(uint32_t id) const;
  size_t size() const { return streams_.size(); }
  // Returns true when the newest stream exceeds this connection's limit of streams, or this
  // connection's part of the limit for all connections (Http2Limits::total_streams).
  bool are_too_many() const;
  size_t unfinished_bytes() const { return unfinished_bytes_; }
  // Returns true when a stream waits for a whole message.
  bool waits() const { return num_waiting_ > 0; }
  // Returns the stream that holds the most bytes.
  std::optional<uint32_t> Largest() const;
  // Returns the streams that have waited for at least Http2Limits::message_time.
  std::vector<uint32_t> Late(Clock::time_point now) const;

 private:
  struct Stream {
    std::array<uint8_t, 5> prefix{};  // of the message: one flag byte and four length bytes
    uint8_t prefix_bytes = 0;
    bool answered = false;      // the server has sent HEADERS
    bool waiting = false;       // waits for a message or for the rest of a message
    bool had_message = false;   // a whole message has arrived
    uint32_t message_left = 0;  // bytes
    size_t held_bytes = 0;      // held in the server for unfinished messages, overhead included
    Clock::time_point since;    // when the wait began
  };

  std::optional<Refusal> ReadMessages(Stream& stream, std::span<const uint8_t> bytes,
                                      Clock::time_point now);
  std::optional<Refusal> CheckPrefix(const Stream& stream) const;
  void StartWaiting(Stream& stream, Clock::time_point now);
  void Hold(Stream& stream, size_t bytes);
  void Release(Stream& stream);  // ends the stream's wait, and counts its bytes as free

  const Http2Limits& limits_;
  DoorCounters& counters_;
  std::unordered_map<uint32_t, Stream> streams_;
  size_t unfinished_bytes_ = 0;
  int num_waiting_ = 0;
};

}  // namespace quire::server::door
