#pragma once

// Tells the parts of an engine of the model, the cache and the limits what each has to know.

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/admission/cache_ledger.h"
#include "engine/frontend/frontend.h"
#include "engine/kv/kv_cache.h"
#include "engine/load/engine_loader.h"
#include "engine/request/engine_info.h"
#include "engine/sharing/prefix_registry.h"

namespace quire::engine {

// The reason why a model is refused what needs all keys of the context in every layer.
inline constexpr char kSeesPartOfContext[] =
    "some layers of the model see only a part of the context";

FrontendLimits FrontendLimitsOf(const EngineParts& parts, const EngineConfig& config,
                                std::function<int64_t()> num_pinned_blocks);

// Returns the sizes of the KV groups, and what one sequence needs of each window.
std::vector<LedgerGroup> LedgerGroups(const KvCache& cache, const StepLimits& limits);

// Returns a function that gives the blocks, by KV group, that a pin of so many tokens holds.
std::function<std::vector<int64_t>(int64_t)> PinnedBlocksOf(const EngineParts& parts);

// Returns the config without its functions of the engine.
PrefixRegistryConfig PrefixConfigOf(const EngineParts& parts);

}  // namespace quire::engine
