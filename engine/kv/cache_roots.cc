#include "engine/kv/cache_roots.h"

#include <algorithm>
#include <xxhash.h>

#include "absl/strings/str_cat.h"

#include "base/check.h"

namespace quire::engine {
namespace {

void AppendPart(std::string& key, std::string_view part) {
  const uint64_t size = part.size();
  for (int shift = 0; shift < 64; shift += 8) key.push_back(static_cast<char>(size >> shift));
  key.append(part);
}

}  // namespace

std::string CacheRootKey(std::string_view model, std::string_view adapter, std::string_view tenant,
                         std::string_view part, std::string_view salt, PinId prefix) {
  std::string key;
  const std::string name = prefix == kNoPin ? "" : absl::StrCat(prefix);
  for (const std::string_view text : {model, adapter, tenant, part, salt, std::string_view(name)}) {
    AppendPart(key, text);
  }
  return key;
}

RootNames NamesOfRoot(std::string_view root_key) {
  // The scheduler's epoch stands before what CacheRootKey made: the size of each part, and the
  // part.
  root_key.remove_prefix(std::min(root_key.find(':'), root_key.size() - 1) + 1);
  std::string_view parts[4];  // model, adapter, tenant, part
  for (std::string_view& part : parts) {
    uint64_t size = 0;
    if (root_key.size() < sizeof(size)) return {};
    for (size_t i = 0; i < sizeof(size); ++i) {
      size |= uint64_t{static_cast<uint8_t>(root_key[i])} << (8 * i);
    }
    root_key.remove_prefix(sizeof(size));
    if (size > root_key.size()) return {};
    part = root_key.substr(0, size);
    root_key.remove_prefix(size);
  }
  return {.tenant = std::string(parts[2]), .part = std::string(parts[3])};
}

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
