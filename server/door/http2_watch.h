#pragma once

// Reads one connection's HTTP/2 frames as they pass in both directions, counts what a hostile
// client would send too much of, and says which streams to refuse and when to cut the connection.
// Knows nothing of sockets: bytes and a time in, a verdict and frames of its own out.
//
// gRPC counts little of this itself: it takes headers and resets without end (CVE-2023-44487),
// reads a whole message before any code of ours runs, and looks at its size only then.

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
  size_t control_frame_bytes = 16 << 10;  // a frame that is neither headers nor data
  size_t message_bytes = 4 << 20;         // one gRPC message
  size_t connection_bytes = 16 << 20;     // unfinished messages of one connection
  size_t total_bytes = 64 << 20;          // unfinished messages of all connections
  size_t unread_bytes = 128 << 10;        // of the door's own frames that a client does not read
  size_t streams = 128;                   // open at once on one connection
  std::chrono::milliseconds message_time{30'000};  // for a message to arrive whole
  // A client that cancels all its streams at once and goes on working stays below these.
  Rate resets{.per_second = 100, .burst = 400};  // of either side, and streams refused
  Rate pings{.per_second = 10, .burst = 50};     // those that answer nothing
  Rate settings{.per_second = 1, .burst = 20};
  // WINDOW_UPDATE, PRIORITY, DATA that is empty or of closed streams, unknown types.
  Rate idle_frames{.per_second = 500, .burst = 5000};
};

// Why a stream is refused: as gRPC's status.
struct Refusal {
  Refused reason = Refused::kGate;
  int code = 0;
  std::string message;
};

// Asked when a request's headers are there and before its body is: nullopt lets it in.
using Gate = std::function<std::optional<Refusal>(const RequestHead&)>;

class Http2Watch {
 public:
  // All borrowed; `counters` is also where the bytes of all connections are counted.
  Http2Watch(const Http2Limits& limits, Gate gate, DoorCounters& counters);
  ~Http2Watch();
  Http2Watch(const Http2Watch&) = delete;
  Http2Watch& operator=(const Http2Watch&) = delete;

  // Bytes on their way to the server, and frames put between them: true when `out` holds both, else
  // the caller sends `bytes` as they are. With a verdict nothing of it may be sent.
  bool FromClient(std::span<const uint8_t> bytes, Clock::time_point now, std::string& out);
  // The same towards the client. Bytes may be kept back until the rest of their frame is there.
  bool FromServer(std::span<const uint8_t> bytes, Clock::time_point now, std::string& out);

  // Frames of the door's own that can go out now, outside of any frame.
  std::string TakeForServer();
  std::string TakeForClient();

  // Refuses what waits for its message for too long.
  void Expire(Clock::time_point now);
  // Refuses the stream that holds most, to make room for other connections.
  void RefuseLargest();

  // Why to cut the connection; nullopt: go on.
  std::optional<Cut> verdict() const { return verdict_; }
  std::string_view why() const { return why_; }
  // Gives the verdict from outside.
  void CutOff(Cut reason, std::string_view why);
  // The verdict in words for the client; only while can_speak().
  std::string Goaway() const;
  // Whether what was sent to the client ended with a whole frame.
  bool can_speak() const { return out_.at_border() && !out_in_headers_ && out_kept_.empty(); }

  size_t unfinished_bytes() const { return unfinished_bytes_; }
  size_t num_streams() const { return streams_.size(); }
  // Whether a stream waits for the rest of its message.
  bool waits() const { return num_waiting_ > 0; }

 private:
  struct Stream {
    std::array<uint8_t, 5> prefix{};  // of the message: a flag, four bytes of length
    uint8_t prefix_bytes = 0;
    bool answered = false;      // the server has sent HEADERS
    bool waiting = false;       // for a message, or the rest of one
    bool had_message = false;   // a whole one has come
    uint32_t message_left = 0;  // bytes
    size_t held_bytes = 0;      // what the server holds of unfinished messages, overhead included
    Clock::time_point since;    // it waits
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
  // The messages in a piece of DATA; why to refuse the stream, if so.
  std::optional<Refusal> ReadMessages(Stream& stream, std::span<const uint8_t> bytes);
  std::optional<Refusal> CheckPrefix(const Stream& stream) const;
  // A piece of the current frame's payload less its padding and priority.
  std::span<const uint8_t> Unpadded(std::span<const uint8_t> payload);

  // Whether what has come of a frame of the server's is enough to judge it.
  bool CanJudge(std::span<const uint8_t> bytes) const;
  // True when the client must not see the frame's meaning. `payload`: what is there of it.
  bool ServerFrame(std::span<const uint8_t> payload);

  void StartWaiting(Stream& stream);
  void Hold(Stream& stream, size_t bytes);
  void Release(Stream& stream);  // what it holds, and its wait
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
  size_t payload_at_ = 0;    // of the current client frame
  size_t padding_ = 0;       // likewise
  bool in_headers_ = false;  // HEADERS without its end: only CONTINUATION may follow
  FrameHead headers_frame_;  // the HEADERS that these are of
  size_t header_bytes_ = 0;
  HeaderBlockReader headers_;

  FrameCursor out_;              // server to client
  bool out_in_headers_ = false;  // as above
  std::string out_kept_;         // a frame that must be seen whole and is not there yet

  uint32_t last_stream_ = 0;
  Streams streams_;
  // The last streams that were refused: what the server still says of them is not for the client.
  static constexpr size_t kRefusedKept = 256;
  std::array<uint32_t, kRefusedKept> refused_{};
  size_t num_refused_ = 0;

  size_t unfinished_bytes_ = 0;
  int num_waiting_ = 0;
  TokenBucket resets_, pings_, settings_, idle_frames_;
  bool ping_is_free_ = false;  // one after an answer: clients measure the path so
  int64_t acks_due_ = 0;       // SETTINGS and PINGs of the server's
  int window_credit_ = 0;      // WINDOW_UPDATEs that answers have earned

  std::string for_server_;
  std::string for_client_;
  std::optional<Cut> verdict_;
  std::string_view why_;
};

}  // namespace quire::server::door
