#pragma once

// Finds out whether logits are not finite because K or V exceeded the range of the cache's data
// type. The check runs only after such logits appear, so successful steps pay nothing.

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

#include "engine/kv/kv_cache.h"
#include "kernels/backend.h"

namespace quire::engine {

// Returns a message such as "the keys of layer 3 are not finite in the f16 KV cache, ...". The
// message is empty when the inspected blocks of every layer hold only finite numbers. `blocks`
// lists the blocks to inspect, by KV group. Stale content of these blocks counts too. Each block is
// copied to the host, so this function is not for the hot path.
absl::StatusOr<std::string> DescribeNonFiniteKv(kernels::Backend& backend, const KvCache& cache,
                                                std::span<const std::span<const int32_t>> blocks);

}  // namespace quire::engine
