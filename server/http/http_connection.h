#pragma once

// One connection of the admin server: reads a request, writes an answer, closes. It never waits, so
// one thread serves all connections.

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

  // `socket` is non-blocking.
  HttpConnection(base::UniqueFd socket, Time now)
      : socket_(std::move(socket)), deadline_(now + kRequestTime) {}

  int fd() const { return socket_.get(); }
  // Events that poll(2) must watch for; 0: only errors.
  short events() const;
  // Time at which the connection must be dropped, whatever its state.
  Time deadline() const { return deadline_; }
  bool done() const { return state_ == State::kDone; }
  // True when no answer is on its way: the connection may be dropped to make room.
  bool is_idle() const { return state_ == State::kReading || state_ == State::kLingering; }

  // Reads or writes as much as it can now. True when a request is whole and waits for its Answer.
  bool Advance(Time now);
  const HttpHead& head() const { return head_; }
  void Answer(int status, std::string_view content_type, std::string_view body, Time now);

 private:
  // kLingering: the answer is written, and the client has not closed its end yet. Closing our end
  // before would lose what the client has not read.
  enum class State { kReading, kWaiting, kWriting, kLingering, kDone };

  // For the request to arrive, however slowly.
  static constexpr std::chrono::seconds kRequestTime{2};
  // For making the answer, and the same again for the client to read it.
  static constexpr std::chrono::seconds kAnswerTime{5};

  // Reads as many bytes of the request as have arrived; false: the client has disconnected.
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
