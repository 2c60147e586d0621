// The functions of BlockManager for blocks whose K and V come from elsewhere than a step. A load
// has a table like a sequence, which no step writes.

#include "base/check.h"
#include "engine/kv/block_manager.h"

namespace quire::engine {

int64_t BlockManager::TryBeginLoad(SequenceId id, std::string_view root_key,
                                   std::span<const int32_t> tokens, TenantCharges::Payer payer) {
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  QUIRE_CHECK(store_.num_windows() == 0 && num_tokens % block_size_ == 0) << "load " << id;
  Held& held = Insert(id);
  held.root = store_.cache().roots().Acquire(root_key);
  held.access = {.payer = payer};
  held.spills = config_.spill != nullptr;
  held.use = {};
  held.num_base_blocks = 0;
  held.num_reserved = 0;
  held.start_step = -1;
  held.copy_step = -1;
  held.table.set_payer(payer);
  held.table.StartWindows({});
  const PrefixCache::Match match = Match(held.root, tokens, nullptr);
  held.table.AppendShared(store_, matched_);
  held.num_committed = int64_t{match.num_whole} * block_size_;
  if (!TryGrow(id, num_tokens)) {
    Release(id, {.comes_back = true});
    return -1;
  }
  return match.num_whole;
}

void BlockManager::EndLoad(SequenceId id, std::span<const int32_t> tokens, int64_t num_loaded) {
  if (num_loaded > Find(id).num_committed) Commit(id, tokens, num_loaded);
  // The request for which they were loaded has yet to start.
  Release(id, {.comes_back = true});
}

}  // namespace quire::engine
