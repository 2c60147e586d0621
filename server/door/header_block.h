#pragma once

// Decodes the headers of requests (HPACK, RFC 7541) with libnghttp2.

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

// The header decoder of one connection. HPACK's table lives as long as the connection, so the
// decoder must read every header block of the connection, in order.
class HeaderBlockReader {
 public:
  HeaderBlockReader();
  ~HeaderBlockReader();
  HeaderBlockReader(const HeaderBlockReader&) = delete;
  HeaderBlockReader& operator=(const HeaderBlockReader&) = delete;

  // Decodes the next bytes of a block. `last` is true when these bytes end the block. Returns false
  // when the bytes are not HPACK, or when the decoded list exceeds `max_list_bytes`. The list's
  // size is counted as for SETTINGS_MAX_HEADER_LIST_SIZE: names, values, and 32 bytes for each
  // field. One encoded byte may expand to 4 KiB of the list.
  bool Read(std::span<const uint8_t> bytes, bool last, size_t max_list_bytes);

  // Returns the headers of the last block that has ended. The next block overwrites them.
  const RequestHead& head() const { return head_; }

 private:
  void Take(std::string_view name, std::string_view value);

  nghttp2_hd_inflater* inflater_ = nullptr;  // owned
  RequestHead head_;
  size_t list_bytes_ = 0;
  bool in_block_ = false;
};

}  // namespace quire::server::door
