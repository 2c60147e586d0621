#pragma once

// The counters of the door. The door's threads write the counters, and any thread may read them.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace quire::server::door {

// The reason why a connection was not let in.
enum class Turned : uint8_t {
  kFull,         // --max_connections
  kAddress,      // --max_connections_per_address
  kDescriptors,  // the process has no file descriptor left
  kHandshake,    // TLS failed
  kHello,        // no HTTP/2 preface in time, or another protocol
};
inline constexpr std::array<std::string_view, 5> kTurnedNames = {"full", "address", "descriptors",
                                                                 "handshake", "hello"};

// The reason why a connection was ended with GOAWAY.
enum class Cut : uint8_t {
  kProtocol,  // not HTTP/2
  kHeaders,   // a header block was too large
  kResets,    // too many streams ended before their answers
  kPings,
  kSettings,
  kFrames,       // too many frames of Http2Limits::idle_frames, or a control frame was too large
  kUnread,       // the client does not read the door's own frames
  kIdle,         // idle, and closed to make room for another when the server was full
  kCertificate,  // the client's certificate is of an authority that --tls_client_ca had before
};
inline constexpr std::array<std::string_view, 9> kCutNames = {
    "protocol", "headers", "resets", "pings",      "settings",
    "frames",   "unread",  "idle",   "certificate"};

// The reason why a stream was refused while its connection stayed open.
enum class Refused : uint8_t {
  kGate,         // the gate refused the headers, for example because the caller is unknown
  kStreams,      // too many streams are open on the connection or on all connections
  kMessageSize,  // a message is larger than --max_message_bytes
  kUnfinished,   // too many bytes of unfinished messages on the connection or on all connections
  kTimeout,      // the message did not arrive within --message_timeout
  kCompressed,   // the message's flag marks it as compressed
  kMalformed,    // the headers are none of a gRPC request, or two readers may differ on them
};
inline constexpr std::array<std::string_view, 7> kRefusedNames = {
    "headers", "streams", "message_size", "unfinished", "timeout", "compressed", "malformed"};

struct DoorCounters {
  template <typename Reason, size_t n>
  struct ByReason {
    std::array<std::atomic<uint64_t>, n> counts{};
    void Add(Reason reason) {
      counts[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
    }
    uint64_t Get(size_t reason) const { return counts[reason].load(std::memory_order_relaxed); }
  };

  ByReason<Turned, kTurnedNames.size()> turned;
  ByReason<Cut, kCutNames.size()> cut;
  ByReason<Refused, kRefusedNames.size()> refused;
  std::atomic<uint64_t> accepted = 0;
  std::atomic<int64_t> open = 0;              // connections, including those in their handshake
  std::atomic<int64_t> idle = 0;              // connections that are relayed, without a stream
  std::atomic<int64_t> streams = 0;           // open on all connections
  std::atomic<int64_t> unfinished_bytes = 0;  // of messages that have not arrived whole
};

}  // namespace quire::server::door
