#pragma once

// The part of HTTP/1.x that the admin server speaks: GET and HEAD, one request on each connection,
// no body.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace quire::server {

inline constexpr size_t kMaxHttpHeadBytes = 8192;

struct HttpHead {
  bool complete = false;  // false: more bytes must come
  int error = 0;          // the status that refuses the request; 0 if it is accepted
  std::string path;       // without its query
  bool is_head = false;   // HEAD: the answer is sent without its body
  // The first header field of each of these names.
  std::optional<std::string> authorization;
  std::string host;
};

// Parses `bytes`, which are all that the client has sent so far. Ignores bytes after the head.
HttpHead ParseHttpHead(std::string_view bytes);

// Returns a whole answer. The answer says that the connection is closed after it. Each line of
// `more_headers` ends with CR LF.
std::string MakeHttpAnswer(int status, std::string_view content_type, std::string_view body,
                           bool is_head, std::string_view more_headers = "");

}  // namespace quire::server
