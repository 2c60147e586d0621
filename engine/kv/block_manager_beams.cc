// The functions of BlockManager for sequences that run together: the beams of one request.

#include <algorithm>

#include "base/check.h"
#include "engine/kv/block_manager.h"

namespace quire::engine {

void BlockManager::ForkTogether(std::span<const SequenceId> ids) {
  Held& parent = Find(ids[0]);
  QUIRE_CHECK(std::ssize(ids) == parent.access.num_together)
      << ids.size() << " of " << parent.access.num_together;
  parent.access.num_together = 1;
  parent.access.write = false;
  for (const SequenceId id : ids.subspan(1)) {
    Held& child = Insert(id);
    child.access = parent.access;
    child.num_reserved = parent.num_reserved;  // by the parent, for all
    Fork(parent, child);
  }
}

BlockManager::Growth BlockManager::GrowthTogether(std::span<const SequenceId> ids,
                                                  int64_t num_tokens) const {
  Growth growth;
  for (size_t i = 0; i < ids.size(); ++i) {
    const Held& held = Find(ids[i]);
    const int64_t first = held.num_committed / block_size_;
    growth.num_blocks += std::max(int64_t{0}, NumBlocksFor(num_tokens) - held.table.size());
    if (first >= held.table.size() || num_tokens <= held.num_committed) continue;
    // Each sequence copies the block that it shares, unless no other has it any more.
    const int32_t block = held.table.blocks()[first];
    const auto has_block = [&](SequenceId id) {
      const std::span<const int32_t> blocks = Find(id).table.blocks();
      return first < std::ssize(blocks) && blocks[first] == block;
    };
    const int64_t num_left =
        store_.pool().table_refs(block) - std::ranges::count_if(ids.first(i), has_block);
    growth.num_copies += store_.pool().pin_refs(block) > 0 || num_left > 1 ? 1 : 0;
  }
  growth.num_blocks += growth.num_copies;
  return growth;
}

bool BlockManager::CouldGrowTogetherLater(std::span<const SequenceId> ids,
                                          int64_t num_tokens) const {
  return GrowthTogether(ids, num_tokens).num_blocks <= num_available() + store_.num_quarantined() &&
         CanReserveTogether(ids, num_tokens, /*later=*/true);
}

bool BlockManager::TryGrowTogether(std::span<const SequenceId> ids, int64_t num_tokens) {
  if (GrowthTogether(ids, num_tokens).num_blocks > num_available() ||
      !CanReserveTogether(ids, num_tokens, /*later=*/false)) {
    return false;
  }
  for (const SequenceId id : ids) {
    QUIRE_CHECK(TryGrow(id, num_tokens)) << "sequence " << id << ": the blocks were counted";
  }
  return true;
}

void BlockManager::Reorder(std::span<const SequenceId> ids, std::span<const int32_t> parents) {
  QUIRE_CHECK(ids.size() == parents.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto parent_index = static_cast<size_t>(parents[i]);
    if (parent_index == i) continue;
    QUIRE_CHECK(static_cast<size_t>(parents[parent_index]) == parent_index)
        << "a parent keeps its table, but sequence " << ids[parent_index] << " does not";
    Held& child = Find(ids[i]);
    const Held& parent = Find(ids[parent_index]);
    QUIRE_CHECK(child.num_committed == parent.num_committed && child.root == parent.root);
    // No other sequence gets blocks of the child, so nothing is lost that is still to be shared.
    // Its parts in windows may be held until a step has completed. What the child reserved is
    // enough for them beside the tokens of its next step.
    child.table.Clear(store_, /*in_flight=*/true);
    child.table.ForkFrom(parent.table, store_, block_size_, parent.num_committed);
  }
}

}  // namespace quire::engine
