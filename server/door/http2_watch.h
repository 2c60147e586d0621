#pragma once

// Reads one connection's HTTP/2 frames as they pass in both directions, and counts everything that
// a hostile client could send in excess. Decides which streams to refuse and when to cut the
// connection. The watch does not use sockets. Its input is bytes and the time. Its output is a
// verdict and frames that it adds.
//
// gRPC counts little of this itself. It takes any number of headers and resets (CVE-2023-44487). It
// reads a whole message before our code runs, and checks the message's size only then.

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

// Judges a request when its headers have arrived, before its body. Returns nullopt to let it in.
using Gate = std::function<std::optional<Refusal>(const RequestHead&)>;

class Http2Watch {
 public:
  // Borrows `limits` and `counters`. `counters` has the totals of unfinished bytes and of streams
  // over all connections.
  Http2Watch(const Http2Limits& limits, Gate gate, DoorCounters& counters);
  Http2Watch(const Http2Watch&) = delete;
  Http2Watch& operator=(const Http2Watch&) = delete;

  // Inspects bytes on their way to the server. If FromClient returns true, it has changed the bytes
  // or added frames, and the caller must send `out`. Otherwise the caller must send `bytes`. Once
  // there is a verdict, the caller must send nothing.
  bool FromClient(std::span<const uint8_t> bytes, Clock::time_point now, std::string& out);
  // Inspects bytes on their way to the client. The result and `out` are as in FromClient. The watch
  // may keep bytes back until the rest of their frame has arrived.
  bool FromServer(std::span<const uint8_t> bytes, Clock::time_point now, std::string& out);

  // Return the door's own frames that can be sent now. Return "" in the middle of another frame.
  std::string TakeForServer();
  std::string TakeForClient();

  // Refuses the streams that have waited for their message for too long.
  void Expire(Clock::time_point now);
  // Refuses the connection's stream that holds the most bytes, to make room for other connections.
  void RefuseLargest();

  // Returns the reason to cut the connection, or nullopt while the connection may go on.
  std::optional<Cut> verdict() const { return verdict_; }
  std::string_view why() const { return why_; }
  // Sets the verdict, unless there is one.
  void CutOff(Cut reason, std::string_view why);
  // Returns a GOAWAY frame that tells the client the verdict. Must be sent only while can_speak().
  std::string Goaway() const;
  // Returns true when the bytes sent to the client end with a whole frame.
  bool can_speak() const { return out_.at_border() && !out_in_headers_ && out_kept_.empty(); }

  size_t unfinished_bytes() const { return streams_.unfinished_bytes(); }
  size_t num_streams() const { return streams_.size(); }
  // Returns true when a stream waits for a whole message.
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

  // `bytes` begins with a frame from the server. Returns true when enough of the frame has arrived
  // to judge it.
  bool CanJudge(std::span<const uint8_t> bytes) const;
  // Judges a frame from the server. Returns true when the frame must be hidden from the client.
  // `payload` is the part of the frame's payload that has arrived.
  bool ServerFrame(std::span<const uint8_t> payload);

  void Refuse(uint32_t stream, const Refusal& refusal);
  // Hides the HEADERS of `stream` from the server, so that the server starts no call for the
  // stream. Returns false if a part of the HEADERS may have been sent already.
  bool Hide(uint32_t stream);
  bool WasRefused(uint32_t stream) const;
  void CountReset();

  const Http2Limits& limits_;
  const Gate gate_;
  DoorCounters& counters_;

  Clock::time_point now_;  // the time that was passed to the running method
  size_t preface_bytes_ = 0;
  FrameCursor in_;           // client to server
  size_t payload_at_ = 0;    // offset in the current client frame
  size_t padding_ = 0;       // of the current client frame, in bytes
  bool in_headers_ = false;  // inside a header block; only CONTINUATION may follow
  FrameHead headers_frame_;  // the HEADERS frame that began the block
  size_t header_bytes_ = 0;
  HeaderBlockReader headers_;
  // The next three members point into the bytes of the FromClient call that is running.
  //
  // The beginning of the current frame; null if the frame began in earlier bytes.
  const uint8_t* head_at_ = nullptr;
  // The new streams, and the beginning of the HEADERS of each.
  std::vector<std::pair<uint32_t, const uint8_t*>> begun_;
  // The HEADERS to hide from the server.
  std::vector<const uint8_t*> hidden_;

  FrameCursor out_;              // server to client
  bool out_in_headers_ = false;  // inside a header block of the server
  std::string out_kept_;         // the first part of a frame that must be judged whole

  uint32_t last_stream_ = 0;
  RequestStreams streams_;
  // The streams that were refused last. The server may still send answers on them, and those
  // answers must not reach the client.
  static constexpr size_t kRefusedKept = 256;
  std::array<uint32_t, kRefusedKept> refused_{};
  size_t num_refused_ = 0;

  TokenBucket resets_, pings_, settings_, idle_frames_;
  // Set by each HEADERS or DATA frame of the server. The client's next PING is then not counted,
  // because clients ping after such frames to estimate the bandwidth-delay product.
  bool ping_is_free_ = false;
  int64_t acks_due_ = 0;   // SETTINGS and PINGs of the server that the client has not answered
  int window_credit_ = 0;  // WINDOW_UPDATEs that the server's answers allow the client

  std::string for_server_;
  std::string for_client_;
  std::optional<Cut> verdict_;
  std::string_view why_;
};

}  // namespace quire::server::door
