#pragma once

// One connection of the admin server. Reads a request, writes an answer, and closes. No method
// waits, so one thread can serve all connections.

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "base/unique_fd.h"
#include "server/http/http_head.h"

namespace quire::server {

class HttpConnection {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `socket` must be non-blocking.
  HttpConnection(base::UniqueFd socket, Time now)
      : socket_(std::move(socket)), deadline_(now + kRequestTime) {}

  int fd() const { return socket_.get(); }
  // Returns the events that poll(2) must watch for; 0 means only errors.
  short events() const;
  // Returns the time at which the connection must be dropped, whatever its state.
  Time deadline() const { return deadline_; }
  bool done() const { return state_ == State::kDone; }
  // Returns true when no answer is being made or written. Then the connection may be dropped to
  // make room.
  bool is_idle() const { return state_ == State::kReading || state_ == State::kLingering; }

  // Reads or writes as much as the socket allows now. Returns true when the request is whole and
  // waits for Answer.
  bool Advance(Time now);
  const HttpHead& head() const { return head_; }
  void Answer(int status, std::string_view content_type, std::string_view body, Time now,
              std::string_view more_headers = "");

 private:
  // kLingering: the answer is written, and the client has not closed its end yet. Closing our end
  // first would lose the bytes that the client has not read.
  enum class State { kReading, kWaiting, kWriting, kLingering, kDone };

  // The time for the request to arrive.
  static constexpr std::chrono::seconds kRequestTime{2};
  // The time limit for making the answer. The same limit applies to sending the answer.
  static constexpr std::chrono::seconds kAnswerTime{5};

  // Reads bytes of the request that have arrived. Returns false when the client has disconnected.
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
