#pragma once

// Reads one connection's HTTP/2 frames as they pass in both directions, counts everything that a
// hostile client could send too much of, and decides which streams to refuse and when to cut the
// connection. It knows nothing of sockets: its input is bytes and a time, its output a verdict and
// frames of its own.
//
// gRPC counts little of this itself: it takes headers and resets without end (CVE-2023-44487),
// reads a whole message before any code of ours runs, and checks the size only then.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/door/door_counters.h"
#include "server/door/header_block.h"
#include "server/door/http2_frames.h"
#include "server/door/http2_limits.h"
#include "server/door/rate.h"
#include "server/door/request_streams.h"

namespace quire::server::door {

// Called when a request's headers have arrived, and before its body: nullopt lets it in.
using Gate = std::function<std::optional<Refusal>(const RequestHead&)>;

class Http2Watch {
 public:
  // All are borrowed. `counters` also holds the unfinished bytes and streams of all connections.
  Http2Watch(const Http2Limits& limits, Gate gate, DoorCounters& counters);
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

  size_t unfinished_bytes() const { return streams_.unfinished_bytes(); }
  size_t num_streams() const { return streams_.size(); }
  // True when a stream waits for the rest of its message.
  bool waits() const { return streams_.waits(); }

 private:
  void BeginClientFrame();
  void BeginHeaders();
  void BeginData();
  void ClientPayload(std::span<const uint8_t> payload);
  void EndClientFrame();
  void TakeAck();
  void EndHeaders();
  // Returns a piece of the current frame's payload without its padding and priority.
  std::span<const uint8_t> Unpadded(std::span<const uint8_t> payload);

  // True when enough of a frame of the server's has arrived to judge it.
  bool CanJudge(std::span<const uint8_t> bytes) const;
  // True when the frame must be hidden from the client. `payload` is the part that has arrived.
  bool ServerFrame(std::span<const uint8_t> payload);

  void Refuse(uint32_t stream, const Refusal& refusal);
  // Keeps the server from making a call of a stream whose HEADERS it has not been sent yet. False
  // when it has, even a part of them.
  bool Hide(uint32_t stream);
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
  // In the bytes of the FromClient that runs: where the current frame begins, if it does there; the
  // new streams, and where their HEADERS begin; the HEADERS to hide.
  const uint8_t* head_at_ = nullptr;
  std::vector<std::pair<uint32_t, const uint8_t*>> begun_;
  std::vector<const uint8_t*> hidden_;

  FrameCursor out_;              // server to client
  bool out_in_headers_ = false;  // as in_headers_
  std::string out_kept_;         // the first part of a frame that must be judged whole

  uint32_t last_stream_ = 0;
  RequestStreams streams_;
  // The last streams that were refused: frames that the server still sends on them must not reach
  // the client.
  static constexpr size_t kRefusedKept = 256;
  std::array<uint32_t, kRefusedKept> refused_{};
  size_t num_refused_ = 0;

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
