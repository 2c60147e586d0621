#pragma once

// Makes the text of /metrics, in the format of Prometheus.

#include <optional>
#include <string>

#include "engine/engine.h"
#include "server/call/rpc_counters.h"
#include "server/door/door_counters.h"
#include "server/gpu/gpu_watch.h"

namespace quire::server {

// Thread-safe. Borrows all its sources.
class MetricsExporter {
 public:
  // `certificate_expiry` is when the server's certificate expires, or InfiniteFuture without TLS.
  // `gpu` is unset if no GPU is watched.
  MetricsExporter(const engine::Engine& engine, const RpcCounters& counters,
                  const OpenCalls& open_calls, const door::DoorCounters& door,
                  absl::Time certificate_expiry = absl::InfiniteFuture(),
                  std::optional<GpuReadings> gpu = std::nullopt);

  // Returns all metrics as they are now. Labels come from fixed lists, so the number of series is
  // bounded.
  std::string Text() const;

 private:
  const engine::Engine& engine_;
  const RpcCounters& counters_;
  const OpenCalls& open_calls_;
  const door::DoorCounters& door_;
  const absl::Time certificate_expiry_;
  const std::optional<GpuReadings> gpu_;
};

}  // namespace quire::server
