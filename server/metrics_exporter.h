#pragma once

// What /metrics says, in Prometheus' text format.

#include <string>

#include "engine/engine.h"
#include "server/door/door_counters.h"
#include "server/rpc_counters.h"

namespace quire::server {

// Borrows all; thread-safe.
class MetricsExporter {
 public:
  // `certificate_expiry`: of the server's own; InfiniteFuture without TLS.
  MetricsExporter(const engine::Engine& engine, const RpcCounters& counters,
                  const OpenCalls& open_calls, const door::DoorCounters& door,
                  absl::Time certificate_expiry = absl::InfiniteFuture());

  // Everything as it is now. Labels come from fixed lists, so the number of series is bounded.
  std::string Text() const;

 private:
  const engine::Engine& engine_;
  const RpcCounters& counters_;
  const OpenCalls& open_calls_;
  const door::DoorCounters& door_;
  const absl::Time certificate_expiry_;
};

}  // namespace quire::server
