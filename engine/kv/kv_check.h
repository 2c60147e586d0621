#pragma once

// Finds out if logits are not finite because K or V exceed what the cache's type can hold. Runs
// only afterwards, so that steps that succeed pay nothing.

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

#include "engine/kv/kv_cache.h"
#include "kernels/backend.h"

namespace quire::engine {

// "the keys of layer 3 are not finite in the f16 KV cache, ...: serve with --kv_dtype bf16"; empty
// when the blocks of every layer hold only finite numbers. `blocks` are those to inspect, by KV
// group; stale content in them counts too. Copies each to the host: not for the hot path.
absl::StatusOr<std::string> DescribeNonFiniteKv(kernels::Backend& backend, const KvCache& cache,
                                                std::span<const std::span<const int32_t>> blocks);

}  // namespace quire::engine
