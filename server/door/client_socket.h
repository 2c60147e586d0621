#pragma once

// A client's TCP connection, plain or under TLS; never blocks.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include <openssl/types.h>
#include <sys/types.h>

#include "base/unique_fd.h"

namespace quire::server::door {

class ClientSocket {
 public:
  // `tls` null: plain text.
  ClientSocket(base::UniqueFd fd, SSL_CTX* tls);

  enum class Handshake { kDone, kWantsRead, kWantsWrite, kFailed };
  Handshake DoHandshake();

  // Bytes, or kAgain, or kClosed after the end or an error.
  static constexpr ssize_t kAgain = -1;
  static constexpr ssize_t kClosed = 0;
  ssize_t Read(std::span<uint8_t> into);
  // After kAgain the next call must begin with the same bytes.
  ssize_t Write(std::string_view bytes);

  // Says that nothing more comes.
  void EndWrites();
  void Close();

  int fd() const { return fd_.get(); }
  const SSL* tls() const { return ssl_.get(); }

 private:
  struct Free {
    void operator()(SSL* ssl) const;
  };

  base::UniqueFd fd_;
  std::unique_ptr<SSL, Free> ssl_;  // null: plain text
};

}  // namespace quire::server::door
