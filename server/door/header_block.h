#pragma once

// Decodes and encodes the headers of requests (HPACK, RFC 7541) with libnghttp2.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "server/door/request_head.h"

struct nghttp2_hd_deflater;
struct nghttp2_hd_inflater;

namespace quire::server::door {

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
  const HeaderList& fields() const { return fields_; }
  // Returns the size of that list.
  size_t list_bytes() const { return list_bytes_; }

 private:
  nghttp2_hd_inflater* inflater_ = nullptr;  // owned
  HeaderList fields_;
  size_t list_bytes_ = 0;
  bool in_block_ = false;
};

// The header encoder towards gRPC, of one connection. Its dynamic table is empty, so a block
// depends on no other block.
class HeaderBlockWriter {
 public:
  HeaderBlockWriter();
  ~HeaderBlockWriter();
  HeaderBlockWriter(const HeaderBlockWriter&) = delete;
  HeaderBlockWriter& operator=(const HeaderBlockWriter&) = delete;

  // Returns the block of `fields`.
  std::string Write(const HeaderList& fields);

 private:
  nghttp2_hd_deflater* deflater_ = nullptr;  // owned
};

}  // namespace quire::server::door
