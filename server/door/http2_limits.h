#pragma once

// The limits that the door sets for a client's HTTP/2 connection, and the refusal of a stream.

#include <chrono>
#include <cstddef>
#include <string>

#include "server/door/door_counters.h"
#include "server/door/rate.h"

namespace quire::server::door {

struct Http2Limits {
  size_t header_block_bytes = 16 << 10;   // HEADERS and all its CONTINUATIONs, as sent
  size_t header_list_bytes = 64 << 10;    // the decoded headers of one HEADERS block
  size_t request_list_bytes = 16 << 10;   // the decoded headers of a request that gRPC gets
  size_t control_frame_bytes = 16 << 10;  // one frame that is neither headers nor data
  size_t message_bytes = 4 << 20;         // one gRPC message
  size_t connection_bytes = 16 << 20;     // unfinished messages of one connection
  size_t total_bytes = 64 << 20;          // unfinished messages of all connections
  size_t unread_bytes = 128 << 10;        // the door's own frames that a client does not read
  size_t streams = 128;                   // open at once on one connection
  // Streams open at once on all connections. A connection may always open its first stream. It may
  // open another stream if it has fewer open streams than there are free streams. (Places limits
  // the connections of an address in a similar way.) Each stream takes 12 KiB in gRPC, plus its
  // headers.
  size_t total_streams = 8192;
  std::chrono::milliseconds message_time{30'000};  // for a message to arrive whole
  // A normal client stays below the following rates, even if it cancels all its streams at once.
  Rate resets{.per_second = 100, .burst = 400};  // RST_STREAMs of either side, and refused streams
  Rate pings{.per_second = 10, .burst = 50};     // PINGs that are not answers
  Rate settings{.per_second = 1, .burst = 20};
  // Frames that a normal client seldom sends: PRIORITY, trailers, DATA of closed streams, DATA with
  // padding, empty DATA without END_STREAM, ACKs for which the server sent no SETTINGS or PING,
  // GOAWAY, frames of unknown types, and more than two WINDOW_UPDATEs for each HEADERS or DATA
  // frame of the server.
  Rate idle_frames{.per_second = 500, .burst = 5000};
};

// gRPC's status codes.
inline constexpr int kInvalidArgument = 3;
inline constexpr int kDeadlineExceeded = 4;
inline constexpr int kResourceExhausted = 8;
inline constexpr int kInternal = 13;

// The reason why a stream is refused, and the gRPC status that the client gets.
struct Refusal {
  Refused reason = Refused::kGate;
  int code = 0;
  std::string message;
};

}  // namespace quire::server::door
