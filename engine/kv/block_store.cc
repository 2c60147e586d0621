#include "engine/kv/block_store.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::engine {

BlockStore::BlockStore(int32_t num_blocks, int32_t block_size,
                       std::span<const int32_t> window_blocks, EvictionPolicy policy,
                       BlockSpill* spill)
    : spill_(spill),
      pool_(num_blocks),
      cache_(num_blocks, block_size, PrefixCache::kMaxCompared, policy),
      charges_(num_blocks) {
  for (const int32_t count : window_blocks) windows_.emplace_back(count, num_blocks);
  for (Holds& holds : holds_) {
    holds.handles.reserve(num_blocks);
    holds.windows.resize(window_blocks.size());
    for (size_t w = 0; w < window_blocks.size(); ++w) {
      holds.windows[w].blocks.reserve(window_blocks[w]);
    }
  }
}

int32_t BlockStore::Take(Payer payer) {
  int32_t block = pool_.Take();
  if (block < 0) {
    block = TakeCached();
    if (block >= 0) ++num_evictions_;
  }
  if (block >= 0) charges_.Hold(block, payer);
  return block;
}

int32_t BlockStore::TakeCached() {
  const int32_t block = cache_.Evict(now_ms_);
  if (block < 0) return -1;
  if (spill_ != nullptr) spill_->Withdraw(block);
  pool_.TakeEvicted(block);
  if (const int32_t next = cache_.LikelyNext(); next >= 0) PrefetchCounts(next);
  for (WindowBlocks& window : windows_) window.Detach(block);
  return block;
}

bool BlockStore::FreeCached() {
  const int32_t block = TakeCached();
  if (block < 0) return false;
  pool_.DropTableRef(block);
  return true;
}

void BlockStore::Hold(int32_t block, Payer payer) {
  charges_.Hold(block, payer);
  if (pool_.AddTableRef(block)) cache_.MarkHeld(block, now_ms_);
}

void BlockStore::Pin(int32_t block, Payer payer) {
  QUIRE_CHECK(pool_.listed(block)) << "block " << block;
  charges_.Hold(block, payer);
  if (pool_.AddPinRef(block)) cache_.MarkHeld(block, now_ms_);
}

// A step in flight does not touch the block through a pin. If it does through a table, then that
// table, or a handle, still holds the block.
void BlockStore::Unpin(int32_t block, Payer payer) {
  charges_.Drop(block, payer);
  if (pool_.DropPinRef(block)) Unheld(block);
}

bool BlockStore::FreedByDrop(int32_t block) const {
  return submitted_ == completed_ && !pool_.listed(block) && pool_.refs(block) == 1;
}

void BlockStore::Drop(int32_t block, bool in_flight, Payer payer) {
  if (in_flight && this->in_flight() && pool_.table_refs(block) == 1) {
    pool_.TableRefToHandle(block);
    HoldsOf(submitted_).handles.push_back({.block = block, .payer = payer});
    return;
  }
  charges_.Drop(block, payer);
  if (pool_.DropTableRef(block)) Unheld(block);
}

void BlockStore::Unheld(int32_t block) {
  if (pool_.listed(block)) {
    cache_.MarkUnheld(block, now_ms_);
  } else {
    for (WindowBlocks& window : windows_) window.Detach(block);
  }
}

void BlockStore::DropWindow(size_t w, int32_t block, bool in_flight) {
  const int32_t held = windows_[w].Find(block);
  if (in_flight && this->in_flight()) {
    HoldsOf(submitted_).windows[w].blocks.push_back(held);
  } else {
    windows_[w].Drop(held);
  }
}

void BlockStore::Unreserve(size_t w, int64_t num_blocks, bool in_flight) {
  if (in_flight && this->in_flight()) {
    HoldsOf(submitted_).windows[w].num_reserved += num_blocks;
  } else {
    windows_[w].Unreserve(num_blocks);
  }
}

void BlockStore::HoldSource(int32_t block, Payer payer) {
  QUIRE_CHECK(building_) << "copies belong to a step";
  charges_.Hold(block, payer);
  if (pool_.AddHandleRef(block)) cache_.MarkHeld(block, now_ms_);
  Holds& holds = HoldsOf(step_);
  holds.handles.push_back({.block = block, .payer = payer});
  for (size_t w = 0; w < windows_.size(); ++w) {
    const int32_t held = windows_[w].Find(block);
    windows_[w].Hold(held);
    holds.windows[w].blocks.push_back(held);
  }
}

void BlockStore::TurnIntoSource(int32_t block, Payer payer) {
  QUIRE_CHECK(building_) << "copies belong to a step";
  pool_.TableRefToHandle(block);
  Holds& holds = HoldsOf(step_);
  holds.handles.push_back({.block = block, .payer = payer});
  for (size_t w = 0; w < windows_.size(); ++w) {
    holds.windows[w].blocks.push_back(windows_[w].Find(block));
  }
}

void BlockStore::DropSource(int32_t block, Payer payer, bool in_flight) {
  QUIRE_CHECK(building_) << "copies belong to a step";
  const auto take_back = [block](auto& holds, const auto& held) {
    const auto it = std::find(holds.rbegin(), holds.rend(), held);
    QUIRE_CHECK(it != holds.rend()) << "block " << block;
    holds.erase(std::next(it).base());
  };
  Holds& holds = HoldsOf(step_);
  const bool waits = in_flight && this->in_flight();
  for (size_t w = 0; w < windows_.size(); ++w) {
    const int32_t held = windows_[w].Find(block);
    take_back(holds.windows[w].blocks, held);
    if (waits) {
      HoldsOf(submitted_).windows[w].blocks.push_back(held);
    } else {
      windows_[w].Drop(held);
    }
  }
  const Handle handle{.block = block, .payer = payer};
  take_back(holds.handles, handle);
  if (waits) {
    // A block after this one may be quarantined until that step, too.
    HoldsOf(submitted_).handles.push_back(handle);
  } else {
    DropHandle(handle);
  }
}

void BlockStore::List(int32_t block, RootId root, int32_t parent, std::span<const int32_t> tokens,
                      const ChainHash* whole) {
  cache_.List(block, root, parent, tokens, whole);
  pool_.SetListed(block, true);
}

void BlockStore::Unlist(int32_t block) {
  if (spill_ != nullptr) spill_->Withdraw(block);
  cache_.Unlist(block);
  pool_.SetListed(block, false);
}

void BlockStore::Discard(int32_t block) {
  if (spill_ != nullptr) spill_->Discard(block);
  Unlist(block);
}

void BlockStore::BeginStep(int64_t step, int64_t now_ms) {
  QUIRE_CHECK(!building_ && step == submitted_ + 1) << "step " << step << " after " << submitted_;
  QUIRE_CHECK(step - completed_ <= 2)
      << "steps " << completed_ + 1 << " .. " << submitted_ << " are in flight";
  building_ = true;
  step_ = step;
  now_ms_ = std::max(now_ms_, now_ms);
}

void BlockStore::EndStep(bool submitted) {
  QUIRE_CHECK(building_);
  building_ = false;
  if (submitted) {
    submitted_ = step_;
  } else {
    QUIRE_CHECK(HoldsOf(step_).handles.empty())
        << "step " << step_ << " does not run, yet is to copy";
  }
}

void BlockStore::CompleteStep(int64_t step) {
  QUIRE_CHECK(step == completed_ + 1 && step <= submitted_)
      << "step " << step << " of " << completed_ + 1 << " .. " << submitted_;
  completed_ = step;
  // Blocks are released in the order of the drops, tails first, so that a prefix outlives its
  // continuations.
  Holds& holds = HoldsOf(step);
  for (size_t w = 0; w < windows_.size(); ++w) {
    Holds::Window& window = holds.windows[w];
    for (const int32_t block : window.blocks) windows_[w].Drop(block);
    windows_[w].Unreserve(std::exchange(window.num_reserved, 0));
    window.blocks.clear();
  }
  for (const Handle& handle : holds.handles) DropHandle(handle);
  holds.handles.clear();
}

void BlockStore::DropHandle(const Handle& handle) {
  charges_.Drop(handle.block, handle.payer);
  if (pool_.DropHandleRef(handle.block)) Unheld(handle.block);
}

std::vector<int32_t> BlockStore::CountHandles() const {
  std::vector<int32_t> count(pool_.num_blocks(), 0);
  for (const Holds& holds : holds_) {
    for (const Handle& handle : holds.handles) ++count[handle.block];
  }
  return count;
}

void BlockStore::ListHandles(std::vector<std::vector<Payer>>& holds) const {
  for (const Holds& step : holds_) {
    for (const Handle& handle : step.handles) holds[handle.block].push_back(handle.payer);
  }
}

std::vector<int32_t> BlockStore::CountWindowHolds(size_t w) const {
  std::vector<int32_t> count(windows_[w].num_blocks(), 0);
  for (const Holds& holds : holds_) {
    for (const int32_t block : holds.windows[w].blocks) ++count[block];
  }
  return count;
}

void BlockStore::CheckInvariants() const {
  pool_.CheckInvariants();
  cache_.CheckInvariants(pool_);
  for (const WindowBlocks& window : windows_) window.CheckInvariants();
}

}  // namespace quire::engine
