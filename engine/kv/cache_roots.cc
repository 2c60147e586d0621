#include "engine/kv/cache_roots.h"

#include <xxhash.h>

#include "base/check.h"

namespace quire::engine {

RootId CacheRoots::Acquire(std::string_view key, PinId on, int64_t base_tokens) {
  if (const auto it = by_key_.find(key); it != by_key_.end()) {
    QUIRE_CHECK(roots_[it->second].on == on && roots_[it->second].base_tokens == base_tokens)
        << "root " << it->second << " stands on another prefix";
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
  root.on = on;
  root.base_tokens = base_tokens;
  root.refs = 1;
  ++root.generation;
  if (on != kNoPin) ++prefixes_.at(on);
  by_key_.emplace(root.key, id);
  return id;
}

void CacheRoots::Release(RootId root) {
  QUIRE_CHECK(roots_[root].refs > 0) << "root " << root;
  if (--roots_[root].refs > 0) return;
  if (const auto it = prefixes_.find(roots_[root].on); it != prefixes_.end()) --it->second;
  by_key_.erase(roots_[root].key);
  roots_[root].key.clear();
  unused_.push_back(root);
}

bool CacheRoots::EndPrefix(PinId prefix) {
  const auto it = prefixes_.find(prefix);
  const bool any = it->second > 0;
  prefixes_.erase(it);
  return any;
}

}  // namespace quire::engine
