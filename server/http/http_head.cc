#include "server/http/http_head.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/strings.h"

namespace quire::server {
namespace {

constexpr std::string_view kNewline = "\r\n";
constexpr std::string_view kEnd = "\r\n\r\n";

bool IsTokenChar(char c) {
  const bool alphanumeric =
      (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  return alphanumeric || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool IsToken(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, IsTokenChar);
}

// Returns true when `bytes` have no control characters except tabs and line ends (CR LF; at the end
// of `bytes`, CR alone). TLS and other binary protocols fail this test.
bool IsText(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char c = bytes[i];
    if (c == '\r' && (i + 1 == bytes.size() || bytes[i + 1] == '\n')) continue;
    if (c == '\n' && i > 0 && bytes[i - 1] == '\r') continue;
    if (c != '\t' && ((c >= 0 && c < ' ') || c == '\x7f')) return false;
  }
  return true;
}

bool AreFields(std::string_view lines) {
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find(kNewline));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || !IsToken(line.substr(0, colon))) return false;
    lines.remove_prefix(std::min(line.size() + kNewline.size(), lines.size()));
  }
  return true;
}

// Returns the value of the first field with this name, which is in lower case.
std::optional<std::string> FieldOf(std::string_view lines, std::string_view name) {
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find(kNewline));
    const size_t colon = line.find(':');
    const std::string_view value = line.substr(colon + 1);
    if (absl::EqualsIgnoreCase(base::ToAbsl(line.substr(0, colon)), base::ToAbsl(name))) {
      return std::string(absl::StripAsciiWhitespace(base::ToAbsl(value)));
    }
    lines.remove_prefix(std::min(line.size() + kNewline.size(), lines.size()));
  }
  return std::nullopt;
}

const char* Reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
  }
  return "";
}

}  // namespace

HttpHead ParseHttpHead(std::string_view bytes) {
  const auto refuse = [](int error) { return HttpHead{.complete = true, .error = error}; };
  const size_t end = bytes.find(kEnd);
  const std::string_view head = bytes.substr(0, end);
  constexpr size_t kMaxSize = kMaxHttpHeadBytes - kEnd.size();
  const std::string_view with_end = bytes.substr(0, head.size() + kEnd.size());
  if (!IsText(with_end.substr(0, kMaxSize))) return refuse(400);
  if (head.size() > kMaxSize) return refuse(431);
  if (end == std::string_view::npos) return {};

  const std::string_view line = head.substr(0, head.find(kNewline));
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return refuse(400);
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!IsToken(method) || !version.starts_with("HTTP/")) return refuse(400);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return refuse(505);
  if (method != "GET" && method != "HEAD") return refuse(405);
  if (!target.starts_with('/') || target.find_first_of(" \t") != std::string_view::npos) {
    return refuse(400);
  }
  const std::string_view fields = head.substr(std::min(line.size() + kNewline.size(), head.size()));
  if (!AreFields(fields)) return refuse(400);
  return {.complete = true,
          .path = std::string(target.substr(0, target.find('?'))),
          .is_head = method == "HEAD",
          .authorization = FieldOf(fields, "authorization"),
          .host = FieldOf(fields, "host").value_or("")};
}

std::string MakeHttpAnswer(int status, std::string_view content_type, std::string_view body,
                           bool is_head, std::string_view more_headers) {
  std::string answer = absl::StrCat("HTTP/1.1 ", status, " ", Reason(status), "\r\n");
  if (status == 405) absl::StrAppend(&answer, "Allow: GET, HEAD\r\n");
  absl::StrAppend(
      &answer, "Content-Type: ", base::ToAbsl(content_type), "\r\nContent-Length: ", body.size(),
      "\r\nCache-Control: no-store\r\nConnection: close\r\n", base::ToAbsl(more_headers), "\r\n");
  if (!is_head) answer += body;
  return answer;
}

}  // namespace quire::server
