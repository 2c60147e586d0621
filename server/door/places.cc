#include "server/door/places.h"

namespace quire::server::door {

std::optional<Places::Place> Places::Take(std::string key, Turned& why) {
  base::MutexLock lock(mu_);
  const auto it = by_address_.find(key);
  const size_t has = it == by_address_.end() ? 0 : it->second;
  const size_t free = max_connections_ - num_taken_;
  if (has > 0 && has >= (max_per_address_ > 0 ? max_per_address_ : free)) {
    why = Turned::kAddress;
    return std::nullopt;
  }
  if (free == 0) {
    why = Turned::kFull;
    return std::nullopt;
  }
  ++num_taken_;
  ++by_address_[key];
  return Place(this, std::move(key));
}

void Places::Give(const std::string& key) {
  base::MutexLock lock(mu_);
  --num_taken_;
  if (const auto it = by_address_.find(key); --it->second == 0) by_address_.erase(it);
}

}  // namespace quire::server::door
