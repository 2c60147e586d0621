#include "server/door/places.h"

#include <algorithm>

namespace quire::server::door {

std::optional<Places::Place> Places::Take(std::string key, Turned& why) {
  base::MutexLock lock(mu_);
  const auto it = by_address_.find(key);
  const size_t has = it == by_address_.end() ? 0 : it->second;
  const size_t free = max_connections_ - num_taken_;
  const size_t equal_part = max_connections_ / (by_address_.size() + 1);
  const size_t limit = max_per_address_ > 0 ? max_per_address_ : std::max(free, equal_part);
  if (has > 0 && has >= limit) {
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

size_t Places::NumOf(const std::string& key) const {
  base::MutexLock lock(mu_);
  const auto it = by_address_.find(key);
  return it == by_address_.end() ? 0 : it->second;
}

}  // namespace quire::server::door
