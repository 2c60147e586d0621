#pragma once

// A client's TCP connection, plain or with TLS. It never blocks.

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
  // A null `tls` means plain text.
  ClientSocket(base::UniqueFd fd, SSL_CTX* tls);

  enum class Handshake { kDone, kWantsRead, kWantsWrite, kFailed };
  Handshake DoHandshake();

  // Read and Write return the number of bytes, kAgain, or kClosed after the end or an error.
  static constexpr ssize_t kAgain = -1;
  static constexpr ssize_t kClosed = 0;
  ssize_t Read(std::span<uint8_t> into);
  // After kAgain the next call must begin with the same bytes.
  ssize_t Write(std::string_view bytes);

  // Tells the client that no more bytes follow.
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
