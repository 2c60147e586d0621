#include "server/door/self_calls.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include "server/door/acceptor.h"

namespace quire::server::door {

void SelfCalls::Expect(uint16_t port) {
  base::MutexLock lock(mu_);
  ports_.insert(port);
}

bool SelfCalls::Take(int accepted) {
  base::MutexLock lock(mu_);
  if (ports_.empty()) return false;
  sockaddr_storage near{}, far{};
  socklen_t near_size = sizeof(near), far_size = sizeof(far);
  if (::getsockname(accepted, reinterpret_cast<sockaddr*>(&near), &near_size) != 0 ||
      ::getpeername(accepted, reinterpret_cast<sockaddr*>(&far), &far_size) != 0) {
    return false;
  }
  // A client on another machine may have the same port, but not the address of this machine.
  if (IpText(near) != IpText(far)) return false;
  return ports_.erase(ntohs(reinterpret_cast<const sockaddr_in&>(far).sin_port)) > 0;
}

}  // namespace quire::server::door
