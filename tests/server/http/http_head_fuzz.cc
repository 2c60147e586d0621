// Parses any bytes, as they may arrive at the admin port. The parser must not crash. Its answer
// must not depend on how the client splits the bytes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/http/http_head.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using quire::server::HttpHead;
  using quire::server::ParseHttpHead;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const HttpHead head = ParseHttpHead(bytes);
  QUIRE_CHECK(head.complete || size < quire::server::kMaxHttpHeadBytes);
  if (head.complete && head.error == 0) {
    QUIRE_CHECK(head.path.starts_with('/') &&
                head.path.find_first_of("? \r\n") == std::string::npos)
        << head.path;
  }
  // If the parser gives a result for a part of the bytes, the result for all bytes must be the
  // same.
  for (const size_t part : {size / 3, size / 2, size - size / 8}) {
    const HttpHead early = ParseHttpHead(bytes.substr(0, part));
    if (!early.complete) continue;
    QUIRE_CHECK(head.complete && head.error == early.error && head.path == early.path &&
                head.is_head == early.is_head)
        << early.error << " then " << head.error;
  }
  return 0;
}
