#pragma once

// Plain HTTP for probes and Prometheus: /livez, /readyz, /metrics.
//
// One thread polls every connection, and none can hold it: a request that is not whole after two
// seconds is dropped, and where there are too many connections the oldest idle one goes. Metrics
// are made on a thread of their own, so that a scrape delays no probe.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "server/listen_address.h"

namespace quire::server {

// What the paths answer. Called on the server's own threads, at any time until it is destroyed. The
// first two never wait for anything: while they do, no probe is answered.
struct AdminHandlers {
  std::function<std::string()> why_not_live;   // empty: /livez says 200, else 503 and this
  std::function<std::string()> why_not_ready;  // likewise, /readyz
  std::function<std::string()> metrics;        // empty: /metrics says 503, nothing to measure yet
};

class AdminServer {
 public:
  // Unavailable when it cannot listen.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(ListenAddress address,
                                                            AdminHandlers handlers);
  ~AdminServer();  // stops and joins
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

  // With the port that was chosen.
  std::string address() const;

 private:
  class Loop;

  explicit AdminServer(std::unique_ptr<Loop> loop);

  const std::unique_ptr<Loop> loop_;
};

}  // namespace quire::server
