#pragma once

// A request's headers, decoded as they pass (HPACK, RFC 7541, by libnghttp2).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct nghttp2_hd_inflater;

namespace quire::server::door {

// The headers by which the door judges a request, before it lets the body in.
struct RequestHead {
  std::string path;           // "/quire.v1.InferenceService/Generate"
  std::string authorization;  // empty: none was sent
  std::string encoding;       // grpc-encoding; empty: none was sent
};

// The decoder of one connection. HPACK's table lives as long as the connection, so every header
// block must pass through here, in order.
class HeaderBlockReader {
 public:
  HeaderBlockReader();
  ~HeaderBlockReader();
  HeaderBlockReader(const HeaderBlockReader&) = delete;
  HeaderBlockReader& operator=(const HeaderBlockReader&) = delete;

  // Takes bytes of a block; `last`: they end it. False when they are not HPACK, or when the list
  // grows beyond `max_list_bytes` (names, values and 32 bytes for each field, as
  // SETTINGS_MAX_HEADER_LIST_SIZE counts). A byte on the wire may expand to 4 KiB of the list.
  bool Read(std::span<const uint8_t> bytes, bool last, size_t max_list_bytes);

  // The headers of the last block that has ended; the next block overwrites them.
  const RequestHead& head() const { return head_; }

 private:
  void Take(std::string_view name, std::string_view value);

  nghttp2_hd_inflater* inflater_ = nullptr;  // owned
  RequestHead head_;
  size_t list_bytes_ = 0;
  bool in_block_ = false;
};

}  // namespace quire::server::door
