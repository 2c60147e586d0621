#include "engine/kv/block_table.h"

#include <algorithm>

#include "base/check.h"
#include "base/math.h"

namespace quire::engine {
namespace {

using base::CeilDiv;

// Loops over blocks begin to load the counts of a block this many blocks ahead.
constexpr size_t kAhead = 16;

// Returns true if a sequence that would write into this block of its table must copy it first.
bool IsSealed(const BlockStore& store, int32_t block) {
  return store.pool().table_refs(block) > 1 || store.pool().pin_refs(block) > 0;
}

// Returns true if others read the block or may read it.
bool IsShared(const BlockStore& store, int32_t block) {
  return store.pool().listed(block) || store.pool().table_refs(block) > 1;
}

}  // namespace

void BlockTable::StartWindows(std::span<const int64_t> begins) {
  QUIRE_CHECK(blocks_.empty());
  windows_.clear();
  for (const int64_t begin : begins) windows_.push_back({.begin = begin, .end = begin});
}

void BlockTable::ExtendWindows(BlockStore& store, int64_t end) {
  for (size_t w = 0; w < windows_.size(); ++w) {
    for (Run& run = windows_[w]; run.end < end; ++run.end) {
      store.window(w).Attach(blocks_[run.end]);
    }
  }
}

void BlockTable::LeaveWindow(BlockStore& store, size_t w, int64_t begin) {
  for (Run& run = windows_[w]; run.begin < std::min(begin, run.end); ++run.begin) {
    store.DropWindow(w, blocks_[run.begin], /*in_flight=*/false);
  }
}

void BlockTable::AppendShared(BlockStore& store, std::span<const int32_t> blocks) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i + kAhead < blocks.size()) store.PrefetchCounts(blocks[i + kAhead]);
    store.Hold(blocks[i], payer_);
    for (size_t w = 0; w < windows_.size(); ++w) {
      if (windows_[w].end != size() + static_cast<int64_t>(i)) continue;
      store.window(w).Hold(store.window(w).Find(blocks[i]));
      ++windows_[w].end;
    }
  }
  blocks_.insert(blocks_.end(), blocks.begin(), blocks.end());
}

int32_t BlockTable::AppendOwn(BlockStore& store) {
  const int32_t block = store.Take(payer_);
  if (block >= 0) blocks_.push_back(block);
  return block;
}

int64_t BlockTable::NumBlocksToGrow(const BlockStore& store, int32_t block_size,
                                    int64_t first_write, int64_t num_tokens) const {
  const int64_t first = first_write / block_size;
  const bool copies = first < size() && num_tokens > first_write && IsSealed(store, blocks_[first]);
  return std::max(int64_t{0}, CeilDiv(num_tokens, block_size) - size()) + (copies ? 1 : 0);
}

bool BlockTable::TryGrow(BlockStore& store, int32_t block_size, int64_t first_write,
                         int64_t num_tokens, kernels::BlockCopy* copy, bool* copied) {
  *copied = false;
  const int64_t needed = NumBlocksToGrow(store, block_size, first_write, num_tokens);
  if (needed == 0) return true;
  if (needed > store.num_available()) return false;

  const int64_t first = first_write / block_size;
  if (first < size() && IsSealed(store, blocks_[first])) {
    *copied = true;
    *copy = {.source = blocks_[first], .destination = store.Take(payer_)};
    QUIRE_CHECK(copy->destination >= 0) << "an available block could not be evicted";
    store.TurnIntoSource(copy->source, payer_);
    for (size_t w = 0; w < windows_.size(); ++w) {
      QUIRE_CHECK(windows_[w].begin <= first && first < windows_[w].end) << "block " << first;
      store.window(w).Attach(copy->destination);
    }
    blocks_[first] = copy->destination;
  }
  while (size() * block_size < num_tokens) {
    QUIRE_CHECK(AppendOwn(store) >= 0) << "an available block could not be evicted";
  }
  return true;
}

int64_t BlockTable::NumBlocksToShift(const BlockStore& store, int64_t begin, int64_t end) const {
  const std::span<const int32_t> left = blocks().subspan(begin, end - begin);
  return std::ranges::count_if(blocks().subspan(end),
                               [&](int32_t block) { return IsShared(store, block); }) -
         std::ranges::count_if(left, [&](int32_t block) { return store.FreedByDrop(block); });
}

void BlockTable::Shift(BlockStore& store, int64_t begin, int64_t end,
                       std::vector<kernels::BlockCopy>* copies, std::vector<int32_t>* sources) {
  const auto turn_into_source = [&](int32_t block) {
    store.TurnIntoSource(block, payer_);
    sources->push_back(block);
  };
  const auto listed = [&](int64_t i) { return store.pool().listed(blocks_[i]); };
  for (int64_t i = end; i-- > begin;) {
    if (!listed(i)) store.Drop(blocks_[i], /*in_flight=*/true, payer_);
  }
  for (int64_t i = size(); i-- > end;) {
    const int32_t source = blocks_[i];
    if (!IsShared(store, source)) continue;
    blocks_[i] = store.Take(payer_);
    QUIRE_CHECK(blocks_[i] >= 0) << "an available block could not be evicted";
    copies->push_back({.source = source, .destination = blocks_[i]});
    turn_into_source(source);
  }
  // The first loop dropped the removed blocks that are not listed. Take() may have returned some of
  // these again, but a block that was just taken is not listed either. So `listed` is true exactly
  // for the removed blocks that this table still holds.
  for (int64_t i = end; i-- > begin;) {
    if (listed(i)) turn_into_source(blocks_[i]);
  }
  blocks_.erase(blocks_.begin() + begin, blocks_.begin() + end);
}

void BlockTable::ForkFrom(const BlockTable& parent, BlockStore& store, int32_t block_size,
                          int64_t num_tokens) {
  QUIRE_CHECK(blocks_.empty() && num_tokens <= parent.size() * block_size)
      << num_tokens << " tokens of " << parent.size() << " blocks";
  payer_ = parent.payer_;
  windows_.clear();
  for (const Run& run : parent.windows_) windows_.push_back({.begin = run.begin, .end = run.begin});
  AppendShared(store, parent.blocks().first(CeilDiv(num_tokens, block_size)));
}

void BlockTable::Replace(BlockStore& store, int64_t i, int32_t block) {
  store.Hold(block, payer_);
  for (size_t w = 0; w < windows_.size(); ++w) {
    if (i < windows_[w].begin || i >= windows_[w].end) continue;
    WindowBlocks& window = store.window(w);
    const int32_t known = window.Find(block);
    if (known >= 0 && window.refs(known) > 0) {
      window.Hold(known);
      store.DropWindow(w, blocks_[i]);
    } else {
      window.Detach(block);
      window.Move(blocks_[i], block);
    }
  }
  store.Drop(blocks_[i], /*in_flight=*/true, payer_);
  blocks_[i] = block;
}

void BlockTable::Clear(BlockStore& store, bool in_flight) {
  while (!blocks_.empty()) {
    if (blocks_.size() > kAhead) {
      store.PrefetchCounts(blocks_[blocks_.size() - 1 - kAhead]);
      store.Prefetch(blocks_[blocks_.size() - 1 - kAhead]);
    }
    for (size_t w = 0; w < windows_.size(); ++w) {
      Run& run = windows_[w];
      if (run.end != size() || run.begin == run.end) continue;
      store.DropWindow(w, blocks_.back(), in_flight);
      --run.end;
    }
    store.Drop(blocks_.back(), in_flight, payer_);
    blocks_.pop_back();
  }
}

}  // namespace quire::engine
