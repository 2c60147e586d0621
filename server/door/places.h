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
  // If `max_per_address` is 0, the limit of an address is dynamic (dynamic thresholds; Choudhury
  // and Hahne, 1998). An address gets another place while it has fewer places than are free, or
  // fewer than an equal part. With n addresses that part is max_connections / (n + 1). So one
  // address alone gets half of all places, and n greedy addresses that come together get one part
  // each. Addresses that come one after the other may fill the server. Then Take answers kFull to
  // an address that has less than an equal part, and the caller makes room.
  Places(size_t max_connections, size_t max_per_address)
      : max_connections_(max_connections), max_per_address_(max_per_address) {}

  // The place of one connection. Its destructor releases the place. Movable.
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
    // Returns the number of places that the address of this place has.
    size_t num_of_address() const { return places_ == nullptr ? 0 : places_->NumOf(key_); }

   private:
    friend class Places;
    Place(Places* places, std::string key) : places_(places), key_(std::move(key)) {}

    Places* places_ = nullptr;  // not owned
    std::string key_;
  };

  // Takes a place for the address with the AddressKey `key`. Sets `why` and returns nullopt when
  // there is no place.
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
