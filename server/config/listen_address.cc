#include "server/config/listen_address.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"

namespace quire::server {
namespace {

// Returns a socket that listens. On failure returns no socket, and errno has the cause. `host` is
// the host as the user gave it; for [::] the socket takes IPv4 too.
base::UniqueFd TryListen(const addrinfo& info, std::string_view host) {
  base::UniqueFd fd(
      ::socket(info.ai_family, info.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, info.ai_protocol));
  if (!fd) return fd;
  const int yes = 1;  // allows bind while connections of an earlier server are in TIME_WAIT
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (info.ai_family == AF_INET6) {
    const int only_v6 = host == "::" ? 0 : 1;
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof(only_v6));
  }
  const bool listens =
      ::bind(fd.get(), info.ai_addr, info.ai_addrlen) == 0 && ::listen(fd.get(), SOMAXCONN) == 0;
  if (listens) return fd;
  const int error = errno;
  fd.Reset();
  errno = error;
  return fd;
}

in_port_t& PortField(sockaddr& address) {
  return address.sa_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

// Returns true when `error` means that this machine does not have the address. A host name may
// resolve to several addresses, and the machine needs to have only one of them.
bool IsAbsent(int error) { return error == EADDRNOTAVAIL || error == EAFNOSUPPORT; }

absl::Status CannotListen(const ListenAddress& address, const char* why) {
  return absl::UnavailableError(absl::StrFormat("%s: cannot listen: %s", address.ToString(), why));
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

absl::StatusOr<Addresses> Resolve(const ListenAddress& address) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(address.port);
  const int unresolved = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
  if (unresolved != 0) return CannotListen(address, ::gai_strerror(unresolved));
  return Addresses(found, &::freeaddrinfo);
}

}  // namespace

std::string ListenAddress::ToString() const {
  const bool ipv6 = host.find(':') != std::string::npos;
  return ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text) {
  const auto wrong = [&] {
    return absl::InvalidArgumentError(
        absl::StrFormat("want HOST:PORT like 127.0.0.1:8100 or [::1]:8100, got \"%s\"", text));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong();
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.empty() || host.find_first_of(":[]/") != std::string_view::npos) {
    return wrong();
  }
  ListenAddress address{.host = std::string(host)};
  const char* end = port.data() + port.size();
  const auto [stop, error] = std::from_chars(port.data(), end, address.port);
  if (error != std::errc() || stop != end) return wrong();
  return address;
}

bool IsLoopback(const ListenAddress& address) {
  if (address.host == "localhost") return true;
  in_addr v4;
  if (::inet_pton(AF_INET, address.host.c_str(), &v4) == 1) {
    return (ntohl(v4.s_addr) >> 24) == 127;
  }
  in6_addr v6;
  return ::inet_pton(AF_INET6, address.host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

uint16_t PortOf(int fd) {
  sockaddr_storage name{};
  socklen_t size = sizeof(name);
  auto& address = reinterpret_cast<sockaddr&>(name);
  return ::getsockname(fd, &address, &size) == 0 ? ntohs(PortField(address)) : 0;
}

absl::StatusOr<SocketAddress> ResolveLocal(const ListenAddress& address) {
  ASSIGN_OR_RETURN(const Addresses found, Resolve(address));
  SocketAddress local{.size = found->ai_addrlen};
  std::memcpy(&local.storage, found->ai_addr, found->ai_addrlen);
  if (local.storage.ss_family == AF_INET6) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(local.storage).sin6_addr;
    if (IN6_IS_ADDR_UNSPECIFIED(&v6)) v6 = in6addr_loopback;
  } else {
    auto& v4 = reinterpret_cast<sockaddr_in&>(local.storage).sin_addr;
    if (v4.s_addr == htonl(INADDR_ANY)) v4.s_addr = htonl(INADDR_LOOPBACK);
  }
  return local;
}

absl::StatusOr<std::vector<base::UniqueFd>> Listen(ListenAddress& address) {
  ASSIGN_OR_RETURN(const Addresses found, Resolve(address));
  std::vector<base::UniqueFd> sockets;
  int absent = 0;
  for (addrinfo* info = found.get(); info != nullptr; info = info->ai_next) {
    // If the port was 0, the other addresses use the port that the first address got.
    PortField(*info->ai_addr) = htons(address.port);
    base::UniqueFd fd = TryListen(*info, address.host);
    if (!fd && !IsAbsent(errno)) return CannotListen(address, std::strerror(errno));
    if (!fd) {
      absent = errno;
      continue;
    }
    address.port = PortOf(fd.get());
    sockets.push_back(std::move(fd));
  }
  if (sockets.empty()) return CannotListen(address, std::strerror(absent));
  return sockets;
}

absl::Status CheckCanListen(const ListenAddress& address) {
  ListenAddress tried = address;
  return Listen(tried).status();
}

}  // namespace quire::server
