#pragma once

// The RPCs of quire.v1. They know neither gRPC nor who carries their calls.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "engine/engine.h"
#include "server/call/call.h"
#include "server/call/rpc_counters.h"

namespace quire::server {

// All referenced objects must outlive the calls.
struct ServiceParts {
  CallParts call;
  engine::Engine& engine;
  OpenCalls& open_calls;
  std::function<void()> drain;  // ControlService.Drain
  absl::Duration max_prefix_ttl;
  size_t max_parsed_bytes = 0;   // memory that one message may take when it is parsed
  int64_t max_answer_bytes = 0;  // of an answer that is one message
  bool trusts_place = false;     // every caller at this address counts as an operator
  // False: ControlService answers here only what every caller may ask.
  bool serves_operators = true;
};

// Each adds the calls of one service, which borrow `parts`.
void AddGenerateCalls(const ServiceParts& parts, CallTable& calls);
void AddTokenCalls(const ServiceParts& parts, CallTable& calls);
void AddPrefixCalls(const ServiceParts& parts, CallTable& calls);
void AddSessionCalls(const ServiceParts& parts, CallTable& calls);
void AddControlCalls(const ServiceParts& parts, CallTable& calls);
void AddTenantCalls(const ServiceParts& parts, CallTable& calls);

// Adds grpc.reflection.v1 and v1alpha, which tell clients the services of a server and their
// descriptors: `names`, health and reflection itself, to operators. They describe every type that
// is linked into the program. The plugin of gRPC 1.51 is not used: it serves only v1alpha, repeats
// requests of any length, and waits without end for clients that do not read.
void AddReflectionCalls(const ServiceParts& parts, std::vector<std::string> names,
                        CallTable& calls);

}  // namespace quire::server
