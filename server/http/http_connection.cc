#include "server/http/http_connection.h"

#include <cerrno>
#include <poll.h>

#include <sys/socket.h>

namespace quire::server {

short HttpConnection::events() const {
  switch (state_) {
    case State::kReading:
    case State::kLingering:
      return POLLIN;
    case State::kWriting:
      return POLLOUT;
    case State::kWaiting:
    case State::kDone:
      return 0;
  }
  return 0;
}

bool HttpConnection::Advance(Time now) {
  if (state_ == State::kWriting) Write(now);
  if (state_ == State::kWaiting) state_ = State::kDone;  // in kWaiting poll(2) reports only errors
  if (!is_idle()) return false;
  const bool reading = state_ == State::kReading;
  if (!Read()) {
    state_ = State::kDone;
    return false;
  }
  if (!reading) return false;
  head_ = ParseHttpHead(request_);
  if (!head_.complete) return false;
  state_ = State::kWaiting;
  deadline_ = now + kAnswerTime;
  return true;
}

bool HttpConnection::Read() {
  char buffer[kMaxHttpHeadBytes];
  const ssize_t got = ::recv(socket_.get(), buffer, sizeof(buffer), 0);
  if (got == 0) return false;
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (state_ == State::kReading) request_.append(buffer, static_cast<size_t>(got));
  return true;
}

void HttpConnection::Answer(int status, std::string_view content_type, std::string_view body,
                            Time now, std::string_view more_headers) {
  if (state_ != State::kWaiting) return;
  answer_ = MakeHttpAnswer(status, content_type, body, head_.is_head, more_headers);
  state_ = State::kWriting;
  deadline_ = now + kAnswerTime;
  Write(now);
}

void HttpConnection::Write(Time now) {
  const ssize_t sent =
      ::send(socket_.get(), answer_.data() + written_, answer_.size() - written_, MSG_NOSIGNAL);
  if (sent < 0) {
    if (errno != EAGAIN && errno != EINTR) state_ = State::kDone;
    return;
  }
  written_ += static_cast<size_t>(sent);
  if (written_ < answer_.size()) return;
  answer_ = {};
  ::shutdown(socket_.get(), SHUT_WR);
  state_ = State::kLingering;
  deadline_ = now + kRequestTime;
}

}  // namespace quire::server
