#pragma once

// What an engine keeps in EngineConfig::kv_disk_dir.

#include <memory>

#include "absl/status/statusor.h"

#include "engine/disk/disk_tier.h"
#include "engine/load/engine_loader.h"
#include "engine/request/engine_info.h"
#include "engine/sharing/prefix_log.h"

namespace quire::engine {

struct KeptOnDisk {
  std::unique_ptr<PrefixLog> prefixes;  // null: there is no directory
  std::unique_ptr<DiskTier> blocks;     // null: kv_disk_mib is 0
};

// Opens it. `parts`, whose directory and cache it uses, must outlive it. Returns FailedPrecondition
// if the model or the backend has no blocks that could be kept, with the cure.
absl::StatusOr<KeptOnDisk> OpenKept(const EngineParts& parts, const EngineConfig& config);

}  // namespace quire::engine
