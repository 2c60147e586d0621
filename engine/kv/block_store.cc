#include "engine/kv/block_store.h"

#include <algorithm>

#include "base/check.h"

namespace quire::engine {

BlockStore::BlockStore(int32_t num_blocks, int32_t block_size)
    : pool_(num_blocks), cache_(num_blocks, block_size) {
  for (std::vector<int32_t>& holds : holds_) holds.reserve(num_blocks);
}

int32_t BlockStore::Take() {
  if (const int32_t block = pool_.Take(); block >= 0) return block;
  const int32_t block = cache_.Evict();
  if (block < 0) return -1;
  pool_.TakeEvicted(block);
  ++num_evictions_;
  return block;
}

void BlockStore::Hold(int32_t block) {
  if (pool_.AddTableRef(block)) cache_.MarkHeld(block);
}

void BlockStore::Drop(int32_t block, bool in_flight) {
  if (in_flight && submitted_ > completed_ && pool_.table_refs(block) == 1) {
    pool_.TableRefToHandle(block);
    HoldsOf(submitted_).push_back(block);
    return;
  }
  if (pool_.DropTableRef(block) && pool_.listed(block)) cache_.MarkUnheld(block, step_);
}

void BlockStore::HoldSource(int32_t block) {
  QUIRE_CHECK(building_) << "copies belong to a step";
  if (pool_.AddHandleRef(block)) cache_.MarkHeld(block);
  HoldsOf(step_).push_back(block);
}

void BlockStore::TurnIntoSource(int32_t block) {
  QUIRE_CHECK(building_) << "copies belong to a step";
  pool_.TableRefToHandle(block);
  HoldsOf(step_).push_back(block);
}

void BlockStore::DropSource(int32_t block) {
  std::vector<int32_t>& holds = HoldsOf(step_);
  const auto it = std::find(holds.rbegin(), holds.rend(), block);
  QUIRE_CHECK(building_ && it != holds.rend()) << "block " << block;
  holds.erase(std::next(it).base());
  DropHandle(block);
}

void BlockStore::List(int32_t block, RootId root, int32_t parent, std::span<const int32_t> tokens) {
  cache_.List(block, root, parent, tokens);
  pool_.SetListed(block, true);
}

void BlockStore::Unlist(int32_t block) {
  cache_.Unlist(block);
  pool_.SetListed(block, false);
}

void BlockStore::BeginStep(int64_t step) {
  QUIRE_CHECK(!building_ && step == submitted_ + 1) << "step " << step << " after " << submitted_;
  QUIRE_CHECK(step - completed_ <= 2)
      << "steps " << completed_ + 1 << " .. " << submitted_ << " are in flight";
  building_ = true;
  step_ = step;
}

void BlockStore::EndStep(bool submitted) {
  QUIRE_CHECK(building_);
  building_ = false;
  if (submitted) {
    submitted_ = step_;
  } else {
    QUIRE_CHECK(HoldsOf(step_).empty()) << "step " << step_ << " does not run, yet is to copy";
  }
}

void BlockStore::CompleteStep(int64_t step) {
  QUIRE_CHECK(step == completed_ + 1 && step <= submitted_)
      << "step " << step << " of " << completed_ + 1 << " .. " << submitted_;
  completed_ = step;
  // In the order of the drops, tails first: a prefix outlives what follows it.
  for (const int32_t block : HoldsOf(step)) DropHandle(block);
  HoldsOf(step).clear();
}

void BlockStore::DropHandle(int32_t block) {
  if (pool_.DropHandleRef(block) && pool_.listed(block)) cache_.MarkUnheld(block, step_);
}

std::vector<int32_t> BlockStore::CountHandles() const {
  std::vector<int32_t> count(pool_.num_blocks(), 0);
  for (const std::vector<int32_t>& holds : holds_) {
    for (const int32_t block : holds) ++count[block];
  }
  return count;
}

void BlockStore::CheckInvariants() const {
  pool_.CheckInvariants();
  cache_.CheckInvariants(pool_);
}

}  // namespace quire::engine
