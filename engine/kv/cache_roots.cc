#include "engine/kv/cache_roots.h"

#include <xxhash.h>

#include "base/check.h"

namespace quire::engine {

RootId CacheRoots::Acquire(std::string_view key) {
  if (const auto it = by_key_.find(key); it != by_key_.end()) {
    ++roots_[it->second].refs;
    return it->second;
  }
  if (unused_.empty()) {
    unused_.push_back(static_cast<RootId>(roots_.size()));
    roots_.emplace_back();
  }
  const RootId id = unused_.back();
  unused_.pop_back();
  Root& root = roots_[id];
  const XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
  root.key = std::string(key);
  root.hash = {.low = hash.low64, .high = hash.high64};
  root.refs = 1;
  ++root.generation;
  by_key_.emplace(root.key, id);
  return id;
}

void CacheRoots::Release(RootId root) {
  QUIRE_CHECK(roots_[root].refs > 0) << "root " << root;
  if (--roots_[root].refs > 0) return;
  by_key_.erase(roots_[root].key);
  roots_[root].key.clear();
  unused_.push_back(root);
}

}  // namespace quire::engine
