#pragma once

// Reads one connection's HTTP/2 frames as they pass in both directions, and counts everything that
// a hostile client could send in excess. Decides which streams to refuse and when to cut the
// connection. The watch does not use sockets. Its input is bytes and the time. Its output is a
// verdict and bytes to send.
//
// The server gets what the watch has judged, and nothing that only the server might read otherwise:
// each request's header list is encoded anew, and padding, priorities, trailers and frames of
// unknown types stay here.
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

  // Reads bytes of the client, and appends to `out` what the server gets for them. Returns how many
  // bytes were read: headers may be longer decoded than they were sent, so FromClient stops when
  // `out` is long. Once there is a verdict, the caller must send nothing.
  size_t FromClient(std::span<const uint8_t> bytes, Clock::time_point now, std::string& out);
  // Inspects bytes on their way to the client. If FromServer returns true, it has changed the bytes
  // or added frames, and the caller must send `out`. Otherwise the caller must send `bytes`. The
  // watch may keep bytes back until the rest of their frame has arrived. A verdict is as in
  // FromClient.
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
  void TakePreface(std::span<const uint8_t>& bytes, std::string& out);
  // The functions with `out` append to it what the server gets.
  void BeginClientFrame(std::string& out);
  void BeginControlFrame();
  void BeginHeaders();
  void BeginData();
  void ClientPayload(std::span<const uint8_t> payload, std::string& out);
  void EndClientFrame(std::string& out);
  void TakeAck();
  void EndHeaders(std::string& out);
  void EndTrailers(uint32_t stream, bool ends_stream, std::string& out);
  // Reads the length of the current frame's padding, which is the first byte of its payload.
  void ReadPadding(uint8_t length);
  // Returns a piece of the current frame's payload without its padding and priority.
  std::span<const uint8_t> Unpadded(std::span<const uint8_t> payload) const;
  // Sends the head of the current DATA frame, as it is without padding.
  void ForwardDataHead(std::string& out) const;
  // Returns the reason to refuse the stream whose headers have just arrived.
  std::optional<Refusal> JudgeHead() const;

  // `bytes` begins with a frame from the server. Returns true when enough of the frame has arrived
  // to judge it.
  bool CanJudge(std::span<const uint8_t> bytes) const;
  // Judges a frame from the server. Returns true when the frame must be hidden from the client.
  // `payload` is the part of the frame's payload that has arrived.
  bool ServerFrame(std::span<const uint8_t> payload);

  // Refuses a stream whose headers the server has.
  void Refuse(uint32_t stream, const Refusal& refusal);
  // Answers the client with `refusal`, and closes the stream.
  void AnswerRefusal(uint32_t stream, const Refusal& refusal);
  void TellClient(std::string_view frames);
  bool WasRefused(uint32_t stream) const;
  void CountReset();

  const Http2Limits& limits_;
  const Gate gate_;
  DoorCounters& counters_;

  Clock::time_point now_;  // the time that was passed to the running method
  size_t preface_bytes_ = 0;
  FrameCursor in_;         // client to server
  size_t payload_at_ = 0;  // offset in the current client frame
  // The bytes of the current client frame's payload before and after what it carries.
  size_t front_ = 0;
  size_t padding_ = 0;
  bool forwards_ = false;    // the current client frame goes to the server as it is
  bool in_headers_ = false;  // inside a header block; only CONTINUATION may follow
  FrameHead headers_frame_;  // the HEADERS frame that began the block
  size_t header_bytes_ = 0;
  HeaderBlockReader headers_;
  HeaderBlockWriter headers_to_server_;

  FrameCursor out_;              // server to client
  bool out_in_headers_ = false;  // inside a header block of the server
  std::string out_kept_;         // the first part of a frame that must be judged whole

  uint32_t last_stream_ = 0;
  RequestStreams streams_;
  // The streams that Refuse refused last. The server may still send answers on them, and those
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
