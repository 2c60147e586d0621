#pragma once

// Finds the client of a call. gRPC sees only a local connection. The name of that connection
// (ServerContext::peer) is the key in this directory.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/base/thread_annotations.h"

#include "base/mutex.h"
#include "base/strings.h"
#include "server/door/http2_limits.h"
#include "server/door/request_head.h"

namespace quire::server::door {

struct Peer {
  std::string address;           // "203.0.113.7:51234"
  std::string certificate_name;  // typed, from the verified certificate; see CertificateName
};

// Judges the headers of each request, before its body. Returns nullopt to let the request in.
using PeerGate = std::function<std::optional<Refusal>(const RequestHead&, const Peer&)>;

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
