#include "server/health/listener_probe.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <poll.h>
#include <string>
#include <string_view>
#include <utility>

#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "base/unique_fd.h"

namespace quire::server {
namespace {

using Clock = std::chrono::steady_clock;
using Tls = std::unique_ptr<SSL, decltype(&::SSL_free)>;
using TlsContext = std::unique_ptr<SSL_CTX, decltype(&::SSL_CTX_free)>;

absl::Status No(std::string_view step, std::string_view why) {
  return absl::UnavailableError(absl::StrCat(base::ToAbsl(step), ": ", base::ToAbsl(why)));
}

// A connection to the listener. Every step ends by the deadline.
class ProbeConnection {
 public:
  explicit ProbeConnection(Clock::time_point deadline) : deadline_(deadline) {}

  absl::Status Connect(const SocketAddress& address, const std::function<void(uint16_t)>& announce);
  absl::Status Handshake();
  absl::Status Write(std::string_view bytes);
  absl::Status Read(char* bytes, size_t size);

 private:
  // Waits until poll(2) sees one of `events`.
  absl::Status Wait(std::string_view step, short events);
  // Waits for the event that OpenSSL needs after an OpenSSL call has returned `result`.
  absl::Status WaitForTls(std::string_view step, int result);

  const Clock::time_point deadline_;
  base::UniqueFd socket_;
  Tls tls_{nullptr, &::SSL_free};
};

absl::Status ProbeConnection::Wait(std::string_view step, short events) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
    if (left.count() <= 0) return No(step, "no answer in time");
    pollfd ready{.fd = socket_.get(), .events = events, .revents = 0};
    if (::poll(&ready, 1, static_cast<int>(left.count())) > 0) return absl::OkStatus();
  }
}

absl::Status ProbeConnection::Connect(const SocketAddress& address,
                                      const std::function<void(uint16_t)>& announce) {
  const sa_family_t family = address.storage.ss_family;
  socket_ = base::UniqueFd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_) return No("socket", std::strerror(errno));
  if (announce != nullptr) {
    sockaddr_storage any{};  // port 0: the kernel chooses one now, so that we can announce it
    any.ss_family = family;
    if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&any), address.size) != 0) {
      return No("bind", std::strerror(errno));
    }
    announce(PortOf(socket_.get()));
  }
  const auto* name = reinterpret_cast<const sockaddr*>(&address.storage);
  if (::connect(socket_.get(), name, address.size) == 0) return absl::OkStatus();
  if (errno != EINPROGRESS) return No("connect", std::strerror(errno));
  RETURN_IF_ERROR(Wait("connect", POLLOUT));
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? absl::OkStatus() : No("connect", std::strerror(error));
}

absl::Status ProbeConnection::WaitForTls(std::string_view step, int result) {
  switch (::SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Wait(step, POLLIN);
    case SSL_ERROR_WANT_WRITE:
      return Wait(step, POLLOUT);
    default:
      ::ERR_clear_error();  // the next reader of OpenSSL's error queue must not find this error
      return No(step, "the connection was closed");
  }
}

// Does the TLS handshake. Does not verify the certificate, since the server is this process.
absl::Status ProbeConnection::Handshake() {
  const TlsContext context(::SSL_CTX_new(::TLS_client_method()), &::SSL_CTX_free);
  if (context == nullptr) return No("TLS", "no memory");
  constexpr std::string_view kHttp2 = "\x02h2";
  ::SSL_CTX_set_alpn_protos(context.get(), reinterpret_cast<const unsigned char*>(kHttp2.data()),
                            kHttp2.size());
  tls_.reset(::SSL_new(context.get()));
  if (tls_ == nullptr || ::SSL_set_fd(tls_.get(), socket_.get()) != 1) {
    return No("TLS", "no memory");
  }
  for (int result; (result = ::SSL_connect(tls_.get())) != 1;) {
    RETURN_IF_ERROR(WaitForTls("TLS handshake", result));
  }
  return absl::OkStatus();
}

absl::Status ProbeConnection::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    size_t written = 0;
    if (tls_ != nullptr) {
      const int result = ::SSL_write_ex(tls_.get(), bytes.data(), bytes.size(), &written);
      if (result != 1) RETURN_IF_ERROR(WaitForTls("write", result));
    } else if (const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
               sent >= 0) {
      written = static_cast<size_t>(sent);
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(Wait("write", POLLOUT));
    } else if (errno != EINTR) {
      return No("write", std::strerror(errno));
    }
    bytes.remove_prefix(written);
  }
  return absl::OkStatus();
}

absl::Status ProbeConnection::Read(char* bytes, size_t size) {
  while (size > 0) {
    size_t read = 0;
    if (tls_ != nullptr) {
      const int result = ::SSL_read_ex(tls_.get(), bytes, size, &read);
      if (result != 1) RETURN_IF_ERROR(WaitForTls("read", result));
    } else if (const ssize_t got = ::recv(socket_.get(), bytes, size, 0); got > 0) {
      read = static_cast<size_t>(got);
    } else if (got == 0) {
      return No("read", "the connection was closed");
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(Wait("read", POLLIN));
    } else if (errno != EINTR) {
      return No("read", std::strerror(errno));
    }
    bytes += read;
    size -= read;
  }
  return absl::OkStatus();
}

// The part of HTTP/2 (RFC 9113) that one call needs.
constexpr char kData = 0x0;
constexpr char kHeaders = 0x1;
constexpr char kResetStream = 0x3;
constexpr char kSettings = 0x4;
constexpr char kGoAway = 0x7;
constexpr char kEndStream = 0x1;
constexpr char kEndHeaders = 0x4;
constexpr size_t kFrameHeaderBytes = 9;

std::string Frame(char type, char flags, char stream, std::string_view payload) {
  const auto size = static_cast<char>(payload.size());  // our payloads are below 128 bytes
  std::string frame = {0, 0, size, type, flags, 0, 0, 0, stream};
  return frame.append(payload);
}

// Returns a header field in HPACK, as a literal without indexing. `name` is the encoded name: an
// index into HPACK's static table, or 0 and the name's length and characters.
std::string Field(std::string_view name, std::string_view value) {
  std::string field(name);
  field.push_back(static_cast<char>(value.size()));
  return field.append(value);
}

std::string HealthCheckCall(bool tls) {
  using std::string_view_literals::operator""sv;
  const std::string headers =
      absl::StrCat("\x83", tls ? "\x87" : "\x86",  // HPACK's static table: POST, https or http
                   Field("\x04", "/grpc.health.v1.Health/Check"), Field("\x01", "localhost"),
                   Field("\x0f\x10", "application/grpc"), Field("\0\x02te"sv, "trailers"));
  const std::string empty_message(5, '\0');  // gRPC's prefix alone: not compressed, 0 bytes
  return absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Frame(kSettings, 0, 0, ""),
                      Frame(kHeaders, kEndHeaders, 1, headers),
                      Frame(kData, kEndStream, 1, empty_message));
}

// Waits until the call is answered or refused. The answer itself is ignored.
absl::Status AwaitAnswer(ProbeConnection& connection) {
  while (true) {
    unsigned char head[kFrameHeaderBytes];
    RETURN_IF_ERROR(connection.Read(reinterpret_cast<char*>(head), sizeof(head)));
    size_t size = (size_t{head[0]} << 16) | (size_t{head[1]} << 8) | head[2];
    const char type = static_cast<char>(head[3]);
    if (type == kHeaders || type == kResetStream) return absl::OkStatus();
    if (type == kGoAway) return No("read", "GOAWAY");
    char skipped[1024];
    while (size > 0) {
      const size_t part = std::min(size, sizeof(skipped));
      RETURN_IF_ERROR(connection.Read(skipped, part));
      size -= part;
    }
  }
}

}  // namespace

absl::StatusOr<ListenerProbe> ListenerProbe::Create(const ListenAddress& address, ListenerTls tls,
                                                    std::function<void(uint16_t)> announce) {
  ListenerProbe probe;
  ASSIGN_OR_RETURN(probe.address_, ResolveLocal(address));
  probe.tls_ = tls;
  probe.announce_ = std::move(announce);
  return probe;
}

absl::Status ListenerProbe::Call(absl::Duration timeout) const {
  ProbeConnection connection(Clock::now() + absl::ToChronoNanoseconds(timeout));
  RETURN_IF_ERROR(connection.Connect(address_, announce_));
  if (tls_ != ListenerTls::kNone) RETURN_IF_ERROR(connection.Handshake());
  if (tls_ == ListenerTls::kMutual) return absl::OkStatus();
  RETURN_IF_ERROR(connection.Write(HealthCheckCall(tls_ != ListenerTls::kNone)));
  return AwaitAnswer(connection);
}

}  // namespace quire::server
