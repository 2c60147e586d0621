#include "server/door/acceptor.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <optional>
#include <utility>

#include <arpa/inet.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"

namespace quire::server::door {
namespace {

constexpr size_t kIpv6NetworkBytes = 8;  // a /64, the network of one customer of a provider

base::UniqueFd OpenSpare() { return base::UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

bool IsShortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

// Returns the IPv4 address in `address`, which may be an IPv4-mapped IPv6 address.
std::optional<in_addr> Ipv4Of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (!IN6_IS_ADDR_V4MAPPED(&v6)) return std::nullopt;
  in_addr v4{};
  std::copy_n(v6.s6_addr + 12, sizeof(v4), reinterpret_cast<uint8_t*>(&v4));
  return v4;
}

}  // namespace

std::string IpText(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (const auto v4 = Ipv4Of(address)) {
    ::inet_ntop(AF_INET, &*v4, text.data(), text.size());
    return text.data();
  }
  ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text.data(),
              text.size());
  return absl::StrCat("[", text.data(), "]");
}

std::string AddressKey(const sockaddr_storage& address) {
  if (Ipv4Of(address)) return IpText(address);
  sockaddr_storage network = address;
  in6_addr& v6 = reinterpret_cast<sockaddr_in6&>(network).sin6_addr;
  std::fill(v6.s6_addr + kIpv6NetworkBytes, v6.s6_addr + sizeof(v6.s6_addr), uint8_t{0});
  return IpText(network);
}

std::string AddressText(const sockaddr_storage& address) {
  // Both families have the port at the same place.
  return absl::StrCat(IpText(address), ":",
                      ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port));
}

Acceptor::Acceptor(DoorCounters& counters) : counters_(counters), spare_(OpenSpare()) {}

Acceptor::Outcome Acceptor::Accept(int listener, AcceptedClient& client) {
  sockaddr_storage from{};
  socklen_t size = sizeof(from);
  client.fd.Reset(
      ::accept4(listener, reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!client.fd) {
    if (!IsShortage(errno)) return Outcome::kNobody;
    counters_.turned.Add(Turned::kDescriptors);
    spare_.Reset();
    base::UniqueFd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));  // closed at once
    spare_ = OpenSpare();
    return Outcome::kNoDescriptors;
  }
  counters_.accepted.fetch_add(1, std::memory_order_relaxed);
  client.address = AddressText(from);
  client.address_key = AddressKey(from);
  return Outcome::kAccepted;
}

}  // namespace quire::server::door
