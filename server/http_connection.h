#pragma once

// One connection of the admin server: a request in, an answer out, closed. Never waits, so that one
// thread serves all of them.

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "base/unique_fd.h"
#include "server/http_head.h"

namespace quire::server {

class HttpConnection {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `socket` is non-blocking.
  HttpConnection(base::UniqueFd socket, Time now)
      : socket_(std::move(socket)), deadline_(now + kRequestTime) {}

  int fd() const { return socket_.get(); }
  // What poll(2) is to watch for; 0: nothing but errors.
  short events() const;
  // The connection is to be dropped then, whatever it is at.
  Time deadline() const { return deadline_; }
  bool done() const { return state_ == State::kDone; }
  // No answer is on its way: it may be dropped to make room.
  bool is_idle() const { return state_ == State::kReading || state_ == State::kLingering; }

  // Reads or writes what it can. True when a request is whole and waits for its Answer.
  bool Advance(Time now);
  const HttpHead& head() const { return head_; }
  void Answer(int status, std::string_view content_type, std::string_view body, Time now);

 private:
  // A lingering one has its answer and has not yet closed its end; closing ours before would lose
  // what it has not read.
  enum class State { kReading, kWaiting, kWriting, kLingering, kDone };

  // However slowly it comes.
  static constexpr std::chrono::seconds kRequestTime{2};
  // To make the answer, and again to take it.
  static constexpr std::chrono::seconds kAnswerTime{5};

  // Bytes of the request, as many as are there; false: the other end is gone.
  bool Read();
  void Write(Time now);

  base::UniqueFd socket_;
  State state_ = State::kReading;
  Time deadline_;
  std::string request_;
  HttpHead head_;  // of `request_`
  std::string answer_;
  size_t written_ = 0;  // of `answer_`
};

}  // namespace quire::server
