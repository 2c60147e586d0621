#pragma once

// Why logits are no numbers: K or V beyond what the cache's type can hold. Looked for afterwards,
// so that steps that go well pay nothing.

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

#include "engine/kv/kv_cache.h"
#include "kernels/backend.h"

namespace quire::engine {

// "the keys of layer 3 are not finite in the f16 KV cache, ...: serve with --kv_dtype bf16"; empty
// when the blocks of every layer hold numbers alone. `blocks` are those to look at, by KV group;
// what they held before counts too. Copies each to the host: not for the hot path.
absl::StatusOr<std::string> DescribeNonFiniteKv(kernels::Backend& backend, const KvCache& cache,
                                                std::span<const std::span<const int32_t>> blocks);

}  // namespace quire::engine
