#pragma once

// Names the K and V of a block by all that they depend on, so that they can be found again.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "base/sha256.h"

namespace quire::engine {

// A SHA-256, chained over a root and the tokens of all blocks from the root on. XXH3, by which the
// cache in memory finds blocks, is no defence against tokens that were chosen to collide.
using BlockKey = base::Sha256Digest;

// The first bytes of a digest are as good a hash as any.
struct BlockKeyHash {
  size_t operator()(const BlockKey& key) const {
    size_t hash = 0;
    std::memcpy(&hash, key.data(), sizeof(hash));
    return hash;
  }
};

// Returns the bytes of a key, as they are written.
inline std::string_view TextOfKey(const BlockKey& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

// Returns the key that the first blocks under a root of the cache have as their parent's.
// `root_key`: see CacheRootKey. `secret`: of the store, so that nobody can choose keys.
BlockKey RootBlockKey(const BlockKey& secret, std::string_view root_key);

// Returns the key of the block with these tokens, which follow those of the parent.
BlockKey ChildBlockKey(const BlockKey& parent, std::span<const int32_t> tokens);

}  // namespace quire::engine
