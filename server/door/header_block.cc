#include "server/door/header_block.h"

#include <vector>

#include <nghttp2/nghttp2.h>

#include "base/check.h"
#include "server/door/http2_frames.h"

namespace quire::server::door {
namespace {

constexpr size_t kFieldOverhead = 32;  // RFC 7541, 4.1

// nghttp2 takes names and values as pointers to mutable bytes, and does not write to them.
uint8_t* Mutable(const std::string& text) {
  return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
}

}  // namespace

HeaderBlockReader::HeaderBlockReader() {
  QUIRE_CHECK(nghttp2_hd_inflate_new(&inflater_) == 0) << "no memory for an HPACK decoder";
}

HeaderBlockReader::~HeaderBlockReader() { nghttp2_hd_inflate_del(inflater_); }

bool HeaderBlockReader::Read(std::span<const uint8_t> bytes, bool last, size_t max_list_bytes) {
  if (!in_block_) {
    in_block_ = true;
    list_bytes_ = 0;
    fields_.clear();
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
      fields_.push_back({.name = std::string(Text({field.name, field.namelen})),
                         .value = std::string(Text({field.value, field.valuelen}))});
    }
    if ((flags & NGHTTP2_HD_INFLATE_FINAL) != 0) {
      nghttp2_hd_inflate_end_headers(inflater_);
      in_block_ = false;
      return true;
    }
    if ((flags & NGHTTP2_HD_INFLATE_EMIT) == 0 && bytes.empty()) return !last;
  }
}

HeaderBlockWriter::HeaderBlockWriter() {
  QUIRE_CHECK(nghttp2_hd_deflate_new(&deflater_, 0) == 0) << "no memory for an HPACK encoder";
}

HeaderBlockWriter::~HeaderBlockWriter() { nghttp2_hd_deflate_del(deflater_); }

std::string HeaderBlockWriter::Write(const HeaderList& fields) {
  std::vector<nghttp2_nv> pairs;
  pairs.reserve(fields.size());
  for (const HeaderField& field : fields) {
    pairs.push_back({.name = Mutable(field.name),
                     .value = Mutable(field.value),
                     .namelen = field.name.size(),
                     .valuelen = field.value.size(),
                     .flags = NGHTTP2_NV_FLAG_NONE});
  }
  std::string block(nghttp2_hd_deflate_bound(deflater_, pairs.data(), pairs.size()), '\0');
  const ssize_t size =
      nghttp2_hd_deflate_hd(deflater_, Mutable(block), block.size(), pairs.data(), pairs.size());
  QUIRE_CHECK(size >= 0) << "no memory for a header block";
  block.resize(static_cast<size_t>(size));
  return block;
}

}  // namespace quire::server::door
