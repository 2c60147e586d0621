// The functions of BlockManager for pictures of the cache.

#include <map>
#include <utility>

#include "base/check.h"
#include "engine/kv/block_manager.h"

namespace quire::engine {

void BlockManager::BeginMap() {
  const CacheRoots& roots = store_.cache().roots();
  const std::span<const CacheMapCell> cells = store_.pool().cells();
  map_ = {.block_size = block_size_,
          .num_blocks = store_.pool().num_blocks(),
          .cells = {cells.begin(), cells.end()}};
  // Several roots of one tenant, with different salts, may stand on one pin.
  std::map<std::pair<PinId, std::string>, int64_t> uses;
  for (const auto& [id, held] : sequences_) {
    const PinId on = roots.on(held.root);
    if (on != kNoPin) ++uses[{on, NamesOfRoot(roots.key(held.root)).tenant}];
  }
  for (const auto& [use, count] : uses) {
    map_.uses.push_back({.pin = use.first, .tenant = use.second, .num_sequences = count});
  }
  walk_ = std::make_unique<CacheWalk>(store_.cache(), store_.pool(), pin_ends_);
}

std::shared_ptr<const CacheMap> BlockManager::ContinueMap(int32_t at_most) {
  QUIRE_CHECK(walk_ != nullptr) << "no picture was begun";
  if (!walk_->Walk(at_most)) return nullptr;
  walk_->Take(map_);
  walk_ = nullptr;
  return std::make_shared<const CacheMap>(std::move(map_));
}

}  // namespace quire::engine
