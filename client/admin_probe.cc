#include "client/admin_probe.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <string>
#include <unistd.h>

#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace quire::client {
namespace {

constexpr std::string_view kRequest = "GET /readyz HTTP/1.0\r\n\r\n";
constexpr size_t kStatusLine = sizeof("HTTP/1.1 200") - 1;  // the checked part of the answer

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return fd_; }
  // Makes the next call on this socket end by `deadline`.
  void EndBy(absl::Time deadline) {
    const timeval left = absl::ToTimeval(std::max(deadline - absl::Now(), absl::Milliseconds(1)));
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &left, sizeof(left));
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &left, sizeof(left));
  }

 private:
  const int fd_;
};

const char* ErrorText() {
  return errno == EAGAIN || errno == EINPROGRESS ? "no answer in time" : std::strerror(errno);
}

// Returns the beginning of the answer from the address `info`, or the reason why there is none.
absl::StatusOr<std::string> Ask(const addrinfo& info, absl::Time deadline) {
  Socket socket(::socket(info.ai_family, info.ai_socktype | SOCK_CLOEXEC, info.ai_protocol));
  socket.EndBy(deadline);
  if (::connect(socket.get(), info.ai_addr, info.ai_addrlen) != 0 ||
      ::send(socket.get(), kRequest.data(), kRequest.size(), MSG_NOSIGNAL) < 0) {
    return absl::UnavailableError(ErrorText());
  }
  std::string answer(kStatusLine, '\0');
  for (size_t size = 0; size < answer.size();) {
    socket.EndBy(deadline);
    const ssize_t got = ::recv(socket.get(), answer.data() + size, answer.size() - size, 0);
    if (got < 0) return absl::UnavailableError(ErrorText());
    if (got == 0) return absl::UnavailableError("the connection was closed");
    size += static_cast<size_t>(got);
  }
  return answer;
}

}  // namespace

absl::StatusOr<bool> AskReady(std::string_view address, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  const auto unavailable = [&](std::string_view why) {
    return absl::UnavailableError(absl::StrFormat(
        "%s: %s. Name the address of the server's --admin_listen with --admin", address, why));
  };
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || colon + 1 == address.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--admin: want HOST:PORT like 127.0.0.1:8101, got \"%s\"", address));
  }
  std::string host(address.substr(0, colon));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int unresolved =
      ::getaddrinfo(host.c_str(), std::string(address.substr(colon + 1)).c_str(), &hints, &found);
  if (unresolved != 0) return unavailable(::gai_strerror(unresolved));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  absl::StatusOr<std::string> answer = absl::UnavailableError("no address");
  for (const addrinfo* info = found; info != nullptr && !answer.ok(); info = info->ai_next) {
    answer = Ask(*info, deadline);
  }
  if (!answer.ok()) return unavailable(base::ToStd(answer.status().message()));
  const std::string_view code = std::string_view(*answer).substr(kStatusLine - 3);
  if (code == "200") return true;
  if (code == "503") return false;
  return unavailable(absl::StrFormat("want HTTP 200 or 503 from /readyz, got \"%s\"", code));
}

}  // namespace quire::client
