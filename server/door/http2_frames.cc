#include "server/door/http2_frames.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace quire::server::door {
namespace {

constexpr size_t kLongestLiteral = 126;  // HPACK writes a length up to 126 in one byte
constexpr uint8_t kLiteralNeverIndexed = 0x10;

void AppendBigEndian(std::string& out, uint32_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    out.push_back(static_cast<char>(value >> shift));
  }
}

uint32_t ReadBigEndian(std::span<const uint8_t> bytes) {
  uint32_t value = 0;
  for (const uint8_t byte : bytes) value = value << 8 | byte;
  return value;
}

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, std::string_view payload) {
  std::string frame;
  AppendFrameHead({.payload_bytes = payload.size(), .type = type, .flags = flags, .stream = stream},
                  frame);
  return frame.append(payload);
}

void AppendLiteral(std::string& block, std::string_view name, std::string_view value) {
  block.push_back(static_cast<char>(kLiteralNeverIndexed));
  for (const std::string_view part : {name, value.substr(0, kLongestLiteral)}) {
    block.push_back(static_cast<char>(part.size()));
    block.append(part);
  }
}

// grpc-message is percent-encoded (gRPC over HTTP/2, "Status-Message").
std::string PercentEncoded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c >= ' ' && c <= '~' && c != '%') {
      out.push_back(c);
    } else {
      absl::StrAppendFormat(&out, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return out;
}

}  // namespace

FrameHead ParseFrameHead(std::span<const uint8_t, kFrameHeadBytes> bytes) {
  return {.payload_bytes = ReadBigEndian(bytes.first<3>()),
          .type = static_cast<FrameType>(bytes[3]),
          .flags = bytes[4],
          .stream = ReadBigEndian(bytes.last<4>()) & 0x7fffffff};
}

void AppendFrameHead(const FrameHead& head, std::string& out) {
  AppendBigEndian(out, static_cast<uint32_t>(head.payload_bytes), 3);
  out.push_back(static_cast<char>(head.type));
  out.push_back(static_cast<char>(head.flags));
  AppendBigEndian(out, head.stream, 4);
}

bool FrameCursor::TakeHead(std::span<const uint8_t>& bytes) {
  const size_t take = std::min(kFrameHeadBytes - head_bytes_, bytes.size());
  std::copy_n(bytes.begin(), take, head_.begin() + static_cast<ptrdiff_t>(head_bytes_));
  head_bytes_ += take;
  bytes = bytes.subspan(take);
  if (!has_head()) return false;
  frame_ = ParseFrameHead(head_);
  payload_left_ = frame_.payload_bytes;
  return true;
}

std::span<const uint8_t> FrameCursor::TakePayload(std::span<const uint8_t>& bytes) {
  const auto taken = bytes.first(std::min(payload_left_, bytes.size()));
  payload_left_ -= taken.size();
  bytes = bytes.subspan(taken.size());
  return taken;
}

void AppendHeaders(uint32_t stream, std::string_view block, bool ends_stream, std::string& out) {
  auto type = FrameType::kHeaders;
  uint8_t flags = ends_stream ? kEndStream : uint8_t{0};
  do {
    const std::string_view piece = block.substr(0, kSmallestFrameLimit);
    block.remove_prefix(piece.size());
    if (block.empty()) flags |= kEndHeaders;
    out += Frame(type, flags, stream, piece);
    type = FrameType::kContinuation;
    flags = 0;
  } while (!block.empty());
}

std::string WindowUpdateFrame(uint32_t stream, uint32_t bytes) {
  std::string payload;
  AppendBigEndian(payload, bytes, 4);
  return Frame(FrameType::kWindowUpdate, 0, stream, payload);
}

std::string ResetStreamFrame(uint32_t stream, Http2Error error) {
  std::string payload;
  AppendBigEndian(payload, static_cast<uint32_t>(error), 4);
  return Frame(FrameType::kResetStream, 0, stream, payload);
}

std::string GoawayFrame(uint32_t last_stream, Http2Error error, std::string_view reason) {
  std::string payload;
  AppendBigEndian(payload, last_stream, 4);
  AppendBigEndian(payload, static_cast<uint32_t>(error), 4);
  return Frame(FrameType::kGoaway, 0, 0, payload.append(reason));
}

std::string TrailersOnlyFrame(uint32_t stream, int code, std::string_view message) {
  std::string block = "\x88";  // :status 200, in the static table
  AppendLiteral(block, "content-type", "application/grpc");
  AppendLiteral(block, "grpc-status", absl::StrFormat("%d", code));
  AppendLiteral(block, "grpc-message", PercentEncoded(message));
  return Frame(FrameType::kHeaders, kEndStream | kEndHeaders, stream, block);
}

bool LeavesTableAlone(std::span<const uint8_t> block) {
  while (!block.empty()) {
    if (block[0] != 0x00 && block[0] != kLiteralNeverIndexed) return false;
    block = block.subspan(1);
    for (int part = 0; part < 2; ++part) {  // a name, a value
      if (block.empty()) return false;
      const size_t length = block[0] & 0x7f;  // the top bit marks a Huffman code
      if (length > kLongestLiteral || block.size() < 1 + length) return false;
      block = block.subspan(1 + length);
    }
  }
  return true;
}

}  // namespace quire::server::door
