#pragma once

// HTTP/1.x as the admin server speaks it: GET and HEAD, one request on each connection, no body.

#include <cstddef>
#include <string>
#include <string_view>

namespace quire::server {

inline constexpr size_t kMaxHttpHeadBytes = 8192;

struct HttpHead {
  bool complete = false;  // false: more bytes must come
  int error = 0;          // the status to answer with, when the request is not one that we take
  std::string path;       // without its query
  bool is_head = false;   // HEAD: the answer is sent without its body
};

// Parses `bytes`, which are all that a stranger has sent so far. Bytes after the head are ignored.
HttpHead ParseHttpHead(std::string_view bytes);

// A whole answer, after which the connection is closed.
std::string MakeHttpAnswer(int status, std::string_view content_type, std::string_view body,
                           bool is_head);

}  // namespace quire::server
