#pragma once

// Limits the number of connections, in all and from one address.

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"

#include "base/mutex.h"
#include "server/door/door_counters.h"

namespace quire::server::door {

// Thread-safe.
class Places {
 public:
  // `max_per_address` 0: an address gets another place while it has fewer than are free (dynamic
  // thresholds; Choudhury and Hahne, 1998), or fewer than its equal part when one part is left
  // over. So one address alone gets half of all places, and n greedy ones that come together get
  // one part of n + 1 each. Those that come one after the other may fill the server; then whoever
  // has less than an equal part is told kFull, and the caller makes room.
  Places(size_t max_connections, size_t max_per_address)
      : max_connections_(max_connections), max_per_address_(max_per_address) {}

  // One connection's place, released when it is destroyed. Movable.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept
        : places_(std::exchange(other.places_, nullptr)), key_(std::move(other.key_)) {}
    Place& operator=(Place&& other) noexcept {
      std::swap(places_, other.places_);
      std::swap(key_, other.key_);
      return *this;
    }
    ~Place() {
      if (places_ != nullptr) places_->Give(key_);
    }
    // The number of places that its address has.
    size_t num_of_address() const { return places_ == nullptr ? 0 : places_->NumOf(key_); }

   private:
    friend class Places;
    Place(Places* places, std::string key) : places_(places), key_(std::move(key)) {}

    Places* places_ = nullptr;  // not owned
    std::string key_;
  };

  // `key` is the AddressKey. Sets `why` and returns nullopt when there is no place.
  std::optional<Place> Take(std::string key, Turned& why);

 private:
  void Give(const std::string& key);
  size_t NumOf(const std::string& key) const;

  const size_t max_connections_;
  const size_t max_per_address_;
  mutable base::Mutex mu_;
  size_t num_taken_ ABSL_GUARDED_BY(mu_) = 0;
  std::unordered_map<std::string, size_t> by_address_ ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::server::door
