#pragma once

// Plain HTTP for probes, Prometheus and people: /livez, /readyz, /metrics, /debug/cache.
//
// One thread polls all connections, and no connection can occupy the thread for long. A request
// that is not whole after two seconds is dropped. When there are too many connections, the oldest
// idle connection is closed. A separate thread makes the metrics, so that a scrape delays no probe.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "server/config/listen_address.h"

namespace quire::server {

// The functions that answer the paths. They are called on the server's own threads, at any time
// until the server is destroyed. `why_not_live` and `why_not_ready` must not wait, because no probe
// is answered while they run.
struct AdminHandlers {
  std::function<std::string()> why_not_live;   // empty: /livez answers 200; else 503 and this text
  std::function<std::string()> why_not_ready;  // the same for /readyz
  std::function<std::string()> metrics;        // empty: /metrics answers 503, nothing measured yet
  // The data of /debug/cache, as JSON. Empty: 503. A separate thread calls it, which may wait.
  std::function<std::string()> cache = [] { return std::string(); };
  // Says who may see that data. On loopback everybody may who asks for a name of loopback, so that
  // no page of another site reaches it by a name of its own. Elsewhere `is_operator` decides, by
  // the field Authorization.
  std::function<bool(const std::optional<std::string>& authorization)> is_operator =
      [](const auto&) { return false; };
};

class AdminServer {
 public:
  // Returns Unavailable when the server cannot listen at `address`.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(ListenAddress address,
                                                            AdminHandlers handlers);
  ~AdminServer();  // stops and joins
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

  // Returns the address that the server listens at, with the port that was chosen.
  std::string address() const;

 private:
  class Loop;

  explicit AdminServer(std::unique_ptr<Loop> loop);

  const std::unique_ptr<Loop> loop_;
};

}  // namespace quire::server
