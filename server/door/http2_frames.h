#pragma once

// Reads the heads of HTTP/2 frames (RFC 9113), and writes the frames that the door itself sends.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace quire::server::door {

// The first bytes that a client sends.
inline constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
inline constexpr size_t kFrameHeadBytes = 9;
// Every receiver takes payloads of this size (RFC 9113, SETTINGS_MAX_FRAME_SIZE).
inline constexpr size_t kSmallestFrameLimit = 16 << 10;

enum class FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kResetStream = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoaway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
  kUnknown = 0xfa,  // a type without a meaning, which every receiver skips
};

// Bits of FrameHead::flags.
inline constexpr uint8_t kEndStream = 0x1;
inline constexpr uint8_t kAck = 0x1;
inline constexpr uint8_t kEndHeaders = 0x4;
inline constexpr uint8_t kPadded = 0x8;
inline constexpr uint8_t kHasPriority = 0x20;

enum class Http2Error : uint32_t {
  kNone = 0,
  kProtocol = 1,
  kRefusedStream = 7,
  kCancel = 8,
  kEnhanceYourCalm = 11,
};

inline std::string_view Text(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct FrameHead {
  size_t payload_bytes = 0;
  FrameType type = FrameType::kData;
  uint8_t flags = 0;
  uint32_t stream = 0;

  bool has(uint8_t flag) const { return (flags & flag) != 0; }
};

FrameHead ParseFrameHead(std::span<const uint8_t, kFrameHeadBytes> bytes);
void AppendFrameHead(const FrameHead& head, std::string& out);

// Splits one direction of a connection into frames, and tracks the position in the current frame.
class FrameCursor {
 public:
  // Takes bytes of a frame's head from the front of `bytes`. Returns true when the head is whole.
  bool TakeHead(std::span<const uint8_t>& bytes);
  // Takes the part of the current frame's payload that is at the front of `bytes`, and returns it.
  std::span<const uint8_t> TakePayload(std::span<const uint8_t>& bytes);
  // Begins the next frame. Must be called after the last byte of the payload.
  void Next() { head_bytes_ = 0; }

  const FrameHead& frame() const { return frame_; }
  size_t payload_left() const { return payload_left_; }
  bool has_head() const { return head_bytes_ == kFrameHeadBytes; }
  // Returns true between two frames.
  bool at_border() const { return head_bytes_ == 0; }

 private:
  std::array<uint8_t, kFrameHeadBytes> head_{};
  size_t head_bytes_ = 0;
  size_t payload_left_ = 0;
  FrameHead frame_;
};

// Appends a header block as a HEADERS frame and as many CONTINUATIONs as it needs.
void AppendHeaders(uint32_t stream, std::string_view block, bool ends_stream, std::string& out);
std::string WindowUpdateFrame(uint32_t stream, uint32_t bytes);
std::string ResetStreamFrame(uint32_t stream, Http2Error error);
// `reason` is sent as debug data.
std::string GoawayFrame(uint32_t last_stream, Http2Error error, std::string_view reason);
// Returns a HEADERS frame that is a gRPC answer of trailers only, with `code` and `message`. The
// frame's header fields are never indexed, so they do not change the client's HPACK table. gRPC
// sends the other answers, and the table must stay in step with gRPC's own.
std::string TrailersOnlyFrame(uint32_t stream, int code, std::string_view message);

// Returns true only if a header block has just literals with literal names, and none of them is
// indexed. Such a block neither changes nor uses HPACK's dynamic table.
bool LeavesTableAlone(std::span<const uint8_t> block);

}  // namespace quire::server::door
