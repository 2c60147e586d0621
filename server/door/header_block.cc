#include "server/door/header_block.h"

#include <nghttp2/nghttp2.h>

#include "base/check.h"
#include "server/door/http2_frames.h"

namespace quire::server::door {
namespace {

constexpr size_t kFieldOverhead = 32;  // RFC 7541, 4.1

}  // namespace

HeaderBlockReader::HeaderBlockReader() {
  QUIRE_CHECK(nghttp2_hd_inflate_new(&inflater_) == 0) << "no memory for an HPACK decoder";
}

HeaderBlockReader::~HeaderBlockReader() { nghttp2_hd_inflate_del(inflater_); }

bool HeaderBlockReader::Read(std::span<const uint8_t> bytes, bool last, size_t max_list_bytes) {
  if (!in_block_) {
    in_block_ = true;
    list_bytes_ = 0;
    head_ = {};
  }
  while (true) {
    nghttp2_nv field;
    int flags = 0;
    const ssize_t used =
        nghttp2_hd_inflate_hd2(inflater_, &field, &flags, bytes.data(), bytes.size(), last ? 1 : 0);
    if (used < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(used));
    if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0) {
      list_bytes_ += field.namelen + field.valuelen + kFieldOverhead;
      if (list_bytes_ > max_list_bytes) return false;
      Take(Text({field.name, field.namelen}), Text({field.value, field.valuelen}));
    }
    if ((flags & NGHTTP2_HD_INFLATE_FINAL) != 0) {
      nghttp2_hd_inflate_end_headers(inflater_);
      in_block_ = false;
      return true;
    }
    if ((flags & NGHTTP2_HD_INFLATE_EMIT) == 0 && bytes.empty()) return !last;
  }
}

void HeaderBlockReader::Take(std::string_view name, std::string_view value) {
  if (name == ":path") head_.path = value;
  if (name == "authorization") head_.authorization = value;
  if (name == "grpc-encoding") head_.encoding = value;
}

}  // namespace quire::server::door
