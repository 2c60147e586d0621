#pragma once

// Plain HTTP for probes and Prometheus: /livez, /readyz, /metrics.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "server/listen_address.h"

namespace quire::server {

// What the paths answer. Called on the server's own threads, at any time until it is destroyed.
struct AdminHandlers {
  std::function<bool()> ready;           // false: /readyz says 503
  std::function<std::string()> metrics;  // empty: /metrics says 503, nothing to measure yet
};

class AdminServer {
 public:
  // Unavailable when it cannot listen.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(const ListenAddress& address,
                                                            AdminHandlers handlers);
  ~AdminServer();  // stops and joins
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

  // With the port that was chosen.
  std::string address() const;

 private:
  struct Http;

  explicit AdminServer(std::unique_ptr<Http> http);

  const std::unique_ptr<Http> http_;
};

}  // namespace quire::server
