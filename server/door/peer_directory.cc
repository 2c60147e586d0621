#include "server/door/peer_directory.h"

#include <utility>

namespace quire::server::door {

std::shared_ptr<const Peer> PeerDirectory::Find(std::string_view name) const {
  base::MutexLock lock(mu_);
  const auto it = peers_.find(name);
  return it == peers_.end() ? nullptr : it->second;
}

void PeerDirectory::Add(std::string name, Peer peer) {
  auto shared = std::make_shared<const Peer>(std::move(peer));
  base::MutexLock lock(mu_);
  peers_.insert_or_assign(std::move(name), std::move(shared));
}

void PeerDirectory::Remove(std::string_view name) {
  base::MutexLock lock(mu_);
  if (const auto it = peers_.find(name); it != peers_.end()) peers_.erase(it);
}

}  // namespace quire::server::door
