#include "server/door/client_socket.h"

#include <cerrno>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

namespace quire::server::door {
namespace {

constexpr int kUnansweredMs = 30'000;  // bytes not acknowledged for this long end the connection

ssize_t FromSystem(ssize_t result) {
  if (result >= 0) return result;
  return errno == EAGAIN || errno == EINTR ? ClientSocket::kAgain : ClientSocket::kClosed;
}

bool IsAgain(int error) { return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE; }

}  // namespace

void ClientSocket::Free::operator()(SSL* ssl) const { ::SSL_free(ssl); }

ClientSocket::ClientSocket(base::UniqueFd fd, SSL_CTX* tls) : fd_(std::move(fd)) {
  const int on = 1;
  ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnansweredMs, sizeof(kUnansweredMs));
  if (tls == nullptr) return;
  ssl_.reset(::SSL_new(tls));
  ::SSL_set_fd(ssl_.get(), fd_.get());
  ::SSL_set_accept_state(ssl_.get());
}

ClientSocket::Handshake ClientSocket::DoHandshake() {
  if (ssl_ == nullptr) return Handshake::kDone;
  ::ERR_clear_error();
  const int result = ::SSL_do_handshake(ssl_.get());
  if (result == 1) return Handshake::kDone;
  switch (::SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Handshake::kWantsRead;
    case SSL_ERROR_WANT_WRITE:
      return Handshake::kWantsWrite;
    default:
      return Handshake::kFailed;
  }
}

ssize_t ClientSocket::Read(std::span<uint8_t> into) {
  if (ssl_ == nullptr) return FromSystem(::recv(fd_.get(), into.data(), into.size(), 0));
  // A TLS record has at most 16 KiB. Reading several records makes fewer, larger writes to gRPC.
  size_t total = 0;
  while (total < into.size()) {
    size_t got = 0;
    ::ERR_clear_error();
    const int result = ::SSL_read_ex(ssl_.get(), into.data() + total, into.size() - total, &got);
    if (result != 1) {
      if (total > 0) break;
      return IsAgain(::SSL_get_error(ssl_.get(), result)) ? kAgain : kClosed;
    }
    total += got;
  }
  return static_cast<ssize_t>(total);
}

ssize_t ClientSocket::Write(std::string_view bytes) {
  if (ssl_ == nullptr) {
    const ssize_t result = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return FromSystem(result);
  }
  size_t written = 0;
  ::ERR_clear_error();
  const int result = ::SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written);
  if (result == 1) return static_cast<ssize_t>(written);
  return IsAgain(::SSL_get_error(ssl_.get(), result)) ? kAgain : kClosed;
}

void ClientSocket::EndWrites() {
  if (ssl_ != nullptr) {
    ::ERR_clear_error();
    ::SSL_shutdown(ssl_.get());
  }
  ::shutdown(fd_.get(), SHUT_WR);
}

void ClientSocket::Close() {
  ssl_.reset();
  fd_.Reset();
}

}  // namespace quire::server::door
