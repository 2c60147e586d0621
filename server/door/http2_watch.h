#pragma once

// Reads one connection's HTTP/2 frames as they pass in both directions, counts everything that a
// hostile client could send too much of, and decides which streams to refuse and when to cut the
// connection. It knows nothing of sockets: its input is bytes and a time, its output a verdict and
// frames of its own.
//
// gRPC counts little of this itself: it takes headers and resets without end (CVE-2023-44487),
// reads a whole message before any code of ours runs, and checks the size only then.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "server/door/door_counters.h"
#include "server/door/header_block.h"
#include "server/door/http2_frames.h"
#include "server/door/rate.h"

namespace quire::server::door {

struct Http2Limits {
  size_t header_block_bytes = 16 << 10;   // HEADERS and all its CONTINUATIONs, as sent
  size_t header_list_bytes = 64 << 10;    // the same, decoded
  size_t control_frame_bytes = 16 << 10;  // one frame that is neither headers nor data
  size_t message_bytes = 4 << 20;         // one gRPC message
  size_t connection_bytes = 16 << 20;     // unfinished messages of one connection
  size_t total_bytes = 64 << 20;          // unfinished messages of all connections
  size_t unread_bytes = 128 << 10;        // the door's own frames that a client does not read
  size_t streams = 128;                   // open at once on one connection
  std::chrono::milliseconds message_time{30'000};  // for a message to arrive whole
  // A client that cancels all its streams at once and goes on working stays below these rates.
  Rate resets{.per_second = 100, .burst = 400};  // by either side, and refused streams
  Rate pings{.per_second = 10, .burst = 50};     // PINGs that are not answers
  Rate settings{.per_second = 1, .burst = 20};
  // WINDOW_UPDATE, PRIORITY, DATA that is empty or of closed streams, and unknown types.
  Rate idle_frames{.per_second = 500, .burst = 5000};
};

// The reason why a stream is refused, with the gRPC status that its client gets.
struct Refusal {
  Refused reason = Refused::kGate;
  int code = 0;
  std::string message;
};

// Called when a request's headers have arrived, and before its body: nullopt lets it in.
using Gate = std::function<std::optional<Refusal>(const RequestHead&)>;

class Http2Watch {
 public:
  // All are borrowed. `counters` also holds the unfinished bytes of all connections.
  Http2Watch(const Http2Limits& limits, Gate gate, DoorCounters& counters);
  ~Http2Watch();
  Http2Watch(const Http2Watch&) = delete;
  Http2Watch& operator=(const Http2Watch&) = delete;

  // Takes bytes on their way to the server. True when frames were put between them, and `out` holds
  // both; otherwise the caller sends `bytes` as they are. Once there is a verdict nothing may be
  // sent.
  bool FromClient(std::span<const uint8_t> bytes, Clock::time_point now, std::string& out);
  // The same towards the client. Bytes may be kept back until the rest of their frame has arrived.
  bool FromServer(std::span<const uint8_t> bytes, Clock::time_point now, std::string& out);

  // Return frames of the door's own that can be sent now, between two other frames.
  std::string TakeForServer();
  std::string TakeForClient();

  // Refuses the streams that have waited for their message for too long.
  void Expire(Clock::time_point now);
  // Refuses the stream that holds the most bytes, to make room for other connections.
  void RefuseLargest();

  // The reason to cut the connection; nullopt: it goes on.
  std::optional<Cut> verdict() const { return verdict_; }
  std::string_view why() const { return why_; }
  // Sets a verdict from outside.
  void CutOff(Cut reason, std::string_view why);
  // Returns a GOAWAY frame with the verdict for the client. Only while can_speak().
  std::string Goaway() const;
  // True when the bytes sent to the client end with a whole frame.
  bool can_speak() const { return out_.at_border() && !out_in_headers_ && out_kept_.empty(); }

  size_t unfinished_bytes() const { return unfinished_bytes_; }
  size_t num_streams() const { return streams_.size(); }
  // True when a stream waits for the rest of its message.
  bool waits() const { return num_waiting_ > 0; }

 private:
  struct Stream {
    std::array<uint8_t, 5> prefix{};  // of the message: a flag, four bytes of length
    uint8_t prefix_bytes = 0;
    bool answered = false;      // the server has sent HEADERS
    bool waiting = false;       // for a message, or the rest of one
    bool had_message = false;   // a whole one has arrived
    uint32_t message_left = 0;  // bytes
    size_t held_bytes = 0;      // of unfinished messages in the server, overhead included
    Clock::time_point since;    // when the wait began
  };
  using Streams = std::unordered_map<uint32_t, Stream>;

  void BeginClientFrame();
  void BeginHeaders();
  void BeginData();
  void ClientPayload(std::span<const uint8_t> payload);
  void EndClientFrame();
  void TakeAck();
  void EndHeaders();
  void EndClientSide(uint32_t stream);
  // Reads the messages in a piece of DATA. Returns a refusal when the stream must be refused.
  std::optional<Refusal> ReadMessages(Stream& stream, std::span<const uint8_t> bytes);
  std::optional<Refusal> CheckPrefix(const Stream& stream) const;
  // Returns a piece of the current frame's payload without its padding and priority.
  std::span<const uint8_t> Unpadded(std::span<const uint8_t> payload);

  // True when enough of a frame of the server's has arrived to judge it.
  bool CanJudge(std::span<const uint8_t> bytes) const;
  // True when the frame must be hidden from the client. `payload` is the part that has arrived.
  bool ServerFrame(std::span<const uint8_t> payload);

  void StartWaiting(Stream& stream);
  void Hold(Stream& stream, size_t bytes);
  void Release(Stream& stream);  // the bytes that it holds, and its wait
  void Erase(Streams::iterator stream);
  void Refuse(Streams::iterator stream, const Refusal& refusal);
  bool WasRefused(uint32_t stream) const;
  void CountReset();

  const Http2Limits& limits_;
  const Gate gate_;
  DoorCounters& counters_;

  Clock::time_point now_;  // of the call that runs
  size_t preface_bytes_ = 0;
  FrameCursor in_;           // client to server
  size_t payload_at_ = 0;    // offset in the current client frame
  size_t padding_ = 0;       // of the current client frame, in bytes
  bool in_headers_ = false;  // in a header block without its end: only CONTINUATION may follow
  FrameHead headers_frame_;  // the HEADERS frame that began the block
  size_t header_bytes_ = 0;
  HeaderBlockReader headers_;

  FrameCursor out_;              // server to client
  bool out_in_headers_ = false;  // as in_headers_
  std::string out_kept_;         // the first part of a frame that must be judged whole

  uint32_t last_stream_ = 0;
  Streams streams_;
  // The last streams that were refused: frames that the server still sends on them must not reach
  // the client.
  static constexpr size_t kRefusedKept = 256;
  std::array<uint32_t, kRefusedKept> refused_{};
  size_t num_refused_ = 0;

  size_t unfinished_bytes_ = 0;
  int num_waiting_ = 0;
  TokenBucket resets_, pings_, settings_, idle_frames_;
  bool ping_is_free_ = false;  // one PING after an answer: clients measure the path with it
  int64_t acks_due_ = 0;       // SETTINGS and PINGs of the server that the client must answer
  int window_credit_ = 0;      // WINDOW_UPDATEs that answers have earned

  std::string for_server_;
  std::string for_client_;
  std::optional<Cut> verdict_;
  std::string_view why_;
};

}  // namespace quire::server::door
