#pragma once

// The picture of the KV cache, for ControlService.GetCacheMap and the page of the admin server.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "engine/engine.h"
#include "quire/v1/control_service.pb.h"

namespace quire::server {

inline constexpr size_t kMostCacheJsonBytes = 64 << 10;

struct CacheMapLimits {
  int32_t cells = 1024;  // 1..engine::kMostMapCells
  int32_t nodes = 256;   // 0..engine::kMostMapNodes
  int32_t prefixes = 64;
};

// Returns InvalidArgument for a number out of range.
absl::StatusOr<CacheMapLimits> FromProto(const v1::GetCacheMapRequest& request);

// Adds the names of prefixes to what the step thread saw. Prefixes that saved most come first.
v1::GetCacheMapResponse ToProto(const engine::CacheMap& map, const engine::Engine& engine,
                                const std::vector<engine::PrefixInfo>& prefixes,
                                const CacheMapLimits& limits);
// Returns all prefixes of the engine.
std::vector<engine::PrefixInfo> AllPrefixes(engine::Engine& engine);

// Returns the picture as JSON of at most kMostCacheJsonBytes: cells and nodes become fewer until it
// fits. Waits for the step thread, for at most `patience`; empty: it gave no answer.
std::string CacheMapJson(engine::Engine& engine, std::chrono::milliseconds patience);

}  // namespace quire::server
