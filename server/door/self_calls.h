#pragma once

// The connections that the server makes to itself, to check that it answers.

#include <cstdint>
#include <set>

#include "absl/base/thread_annotations.h"

#include "base/mutex.h"

namespace quire::server::door {

// Thread-safe.
class SelfCalls {
 public:
  // Announces one connection from local port `port`.
  void Expect(uint16_t port);
  // Returns true when the client of the socket `accepted` is on this machine and has a local port
  // that was announced. Each announcement is used once.
  bool Take(int accepted);

 private:
  base::Mutex mu_;
  std::set<uint16_t> ports_ ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::server::door
