#pragma once

// Makes the bytes of HTTP/2 that a client might write, right or wrong.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/door/header_block.h"
#include "server/door/http2_frames.h"

namespace quire::testing {

inline std::string Frame(server::door::FrameType type, uint8_t flags, uint32_t stream,
                         std::string_view payload = "") {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame.push_back(static_cast<char>(payload.size() >> shift));
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  for (const int shift : {24, 16, 8, 0}) frame.push_back(static_cast<char>(stream >> shift));
  return frame.append(payload);
}

// Returns an HPACK field that is not indexed, with a literal name and a literal value. `name` and
// `value` must have less than 127 bytes each.
inline std::string Literal(std::string_view name, std::string_view value) {
  std::string field(1, '\0');
  for (const std::string_view part : {name, value}) {
    field.push_back(static_cast<char>(part.size()));
    field.append(part);
  }
  return field;
}

// Returns a gRPC message with a payload of `size` bytes.
inline std::string Message(uint32_t size, char flag = 0) {
  std::string message(1, flag);
  for (const int shift : {24, 16, 8, 0}) message.push_back(static_cast<char>(size >> shift));
  return message.append(size, 'm');
}

// Returns the pseudo headers of a request, and `more`.
inline std::string HeadBlock(std::string_view more = "") {
  return (Literal(":method", "POST") + Literal(":scheme", "http") +
          Literal(":path", "/quire.v1.InferenceService/Generate"))
      .append(more);
}

inline std::string Headers(uint32_t stream, std::string_view more = "",
                           uint8_t flags = server::door::kEndHeaders) {
  return Frame(server::door::FrameType::kHeaders, flags, stream, HeadBlock(more));
}

inline std::string Data(uint32_t stream, std::string_view payload, bool last = false) {
  return Frame(server::door::FrameType::kData, last ? server::door::kEndStream : uint8_t{0}, stream,
               payload);
}

// One frame in a string of bytes: the head and the payload.
struct SeenFrame {
  server::door::FrameHead head;
  std::string payload;
};
inline std::vector<SeenFrame> FramesOf(std::string_view bytes) {
  std::vector<SeenFrame> frames;
  server::door::FrameCursor cursor;
  std::span<const uint8_t> rest(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  while (cursor.TakeHead(rest)) {
    const auto payload = cursor.TakePayload(rest);
    frames.push_back(
        {.head = cursor.frame(), .payload = std::string(payload.begin(), payload.end())});
    cursor.Next();
  }
  return frames;
}

// Reads what the server gets. Writes each header block as one frame of literals, so that it can be
// compared with Headers(), and leaves all other bytes as they are.
class LiteralHeaders {
 public:
  std::string Read(std::string_view bytes) {
    using server::door::FrameType;
    std::string out;
    std::span<const uint8_t> rest(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    while (!rest.empty()) {
      if (!in_.has_head()) {
        if (!in_.TakeHead(rest)) break;
        is_headers_ =
            in_.frame().type == FrameType::kHeaders || in_.frame().type == FrameType::kContinuation;
        if (in_.frame().type == FrameType::kHeaders) first_ = in_.frame();
        if (!is_headers_) server::door::AppendFrameHead(in_.frame(), out);
      }
      const std::span<const uint8_t> payload = in_.TakePayload(rest);
      if (!is_headers_) out += server::door::Text(payload);
      const bool is_whole = in_.payload_left() == 0;
      const bool ends = is_headers_ && is_whole && in_.frame().has(server::door::kEndHeaders);
      if (is_headers_ && !reader_->Read(payload, ends, 1 << 20)) return "no HPACK";
      if (ends) {
        std::string block;
        for (const auto& [name, value] : reader_->fields()) block += Literal(name, value);
        out += Frame(FrameType::kHeaders, first_.flags | server::door::kEndHeaders, first_.stream,
                     block);
      }
      if (is_whole) in_.Next();
    }
    return out;
  }

 private:
  server::door::FrameCursor in_;
  std::unique_ptr<server::door::HeaderBlockReader> reader_ =
      std::make_unique<server::door::HeaderBlockReader>();
  server::door::FrameHead first_;
  bool is_headers_ = false;
};

}  // namespace quire::testing
