#pragma once

// Finds the client of a call. gRPC sees only a local connection. The name of that connection
// (ServerContext::peer) is the key in this directory.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/base/thread_annotations.h"

#include "base/mutex.h"
#include "base/strings.h"

namespace quire::server::door {

struct Peer {
  std::string address;           // "203.0.113.7:51234"
  std::string certificate_name;  // from the verified certificate; see CertificateName
};

// Thread-safe.
class PeerDirectory {
 public:
  // Returns nullptr when the client has disconnected.
  std::shared_ptr<const Peer> Find(std::string_view name) const;

  void Add(std::string name, Peer peer);
  void Remove(std::string_view name);

 private:
  mutable base::Mutex mu_;
  std::unordered_map<std::string, std::shared_ptr<const Peer>, base::StringHash, std::equal_to<>>
      peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace quire::server::door
