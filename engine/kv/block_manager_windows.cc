// The functions of BlockManager for windows. They reserve window blocks for a sequence, check that
// a cached prefix still has the parts that a sequence needs, and release the parts of blocks that
// have left a window.

#include <algorithm>
#include <limits>
#include <vector>

#include "base/check.h"
#include "engine/kv/block_manager.h"

namespace quire::engine {

int64_t WindowBlocksPerSequence(const kernels::AttentionPattern& pattern,
                                const BlockManagerConfig& config) {
  // The first query of a step sees at most `earlier` earlier tokens. The step writes at most
  // max_step_tokens. The tokens of a step in flight count twice: Commit may replace parts that hold
  // them by equal parts of another sequence, while the next step still reads the old ones.
  const int64_t earlier = pattern.MostKept(std::numeric_limits<int64_t>::max()) - 1;
  const int64_t tokens = earlier + config.max_step_tokens * (1 + 2 * config.pipeline_depth);
  // Wherever the first token is in its block, the tokens are in at most
  // (tokens + block_size - 2) / block_size + 1 blocks. The source of a copy is one more block.
  return (tokens + config.block_size - 2) / config.block_size + 2;
}

int64_t BlockManager::WindowBegin(size_t w, int64_t position) const {
  return config_.windows[w].pattern.FirstKey(position) / block_size_;
}

int64_t BlockManager::WindowDemand(size_t w, int64_t num_tokens) const {
  if (num_tokens == 0) return 0;
  const int64_t all = NumBlocksFor(num_tokens) * (1 + config_.pipeline_depth) + 1;
  return std::min(all, WindowBlocksPerSequence(config_.windows[w].pattern, config_));
}

int64_t BlockManager::MoreDemand(size_t w, const Held& held, int64_t num_tokens) const {
  const int64_t more = WindowDemand(w, num_tokens) - WindowDemand(w, held.num_reserved);
  return held.access.num_together * std::max(int64_t{0}, more);
}

bool BlockManager::CanReserve(const Held& held, int64_t num_tokens) const {
  for (size_t w = 0; w < store_.num_windows(); ++w) {
    if (MoreDemand(w, held, num_tokens) > store_.window(w).num_unreserved()) return false;
  }
  return true;
}

bool BlockManager::CanReserveTogether(std::span<const SequenceId> ids, int64_t num_tokens,
                                      bool later) const {
  for (size_t w = 0; w < store_.num_windows(); ++w) {
    int64_t more = 0;
    for (const SequenceId id : ids) more += MoreDemand(w, Find(id), num_tokens);
    const int64_t in_flight = later ? store_.num_reserved_in_flight(w) : 0;
    if (more > store_.window(w).num_unreserved() + in_flight) return false;
  }
  return true;
}

bool BlockManager::TryReserve(Held& held, int64_t num_tokens) {
  if (store_.num_windows() == 0 || num_tokens <= held.num_reserved) return true;
  if (!CanReserve(held, num_tokens)) return false;
  for (size_t w = 0; w < store_.num_windows(); ++w) {
    QUIRE_CHECK(store_.window(w).TryReserve(MoreDemand(w, held, num_tokens)));
  }
  held.num_reserved = num_tokens;
  return true;
}

void BlockManager::LeaveWindows(Held& held) {
  for (size_t w = 0; w < store_.num_windows(); ++w) {
    held.table.LeaveWindow(store_, w, WindowBegin(w, held.num_committed));
  }
}

void BlockManager::TrimToWindows(PrefixCache::Match& match) {
  const auto has_part = [&](size_t w, int32_t block) { return store_.window(w).Find(block) >= 0; };
  // After the loop, continuable_[n] is true if a sequence can continue after n whole blocks: each
  // window has parts of all blocks that a query at position n * block_size_ sees.
  continuable_.assign(matched_.size() + 1, true);
  bool partial = match.partial_block >= 0;
  const int64_t end = static_cast<int64_t>(matched_.size());
  for (size_t w = 0; w < store_.num_windows(); ++w) {
    int64_t run = 0;  // the number of consecutive blocks with parts, up to block n - 1
    for (int64_t n = 0; n <= end; ++n) {
      if (n > 0) run = has_part(w, matched_[n - 1]) ? run + 1 : 0;
      if (run < n - WindowBegin(w, n * block_size_)) continuable_[n] = false;
    }
    partial = partial && has_part(w, match.partial_block);
  }
  if (partial && continuable_[end]) return;
  match.partial_block = -1;
  match.partial_tokens = 0;
  while (!continuable_[match.num_whole]) --match.num_whole;
  matched_.resize(match.num_whole);
}

WindowStats BlockManager::window_stats(int32_t kv_group) const {
  const WindowBlocks& window = store_.window(kv_group - 1);
  return {.num_total = window.num_blocks(),
          .num_free = window.num_free(),
          .num_spare = window.num_spare(),
          .num_held = window.num_held(),
          .num_taken_away = window.num_taken_away()};
}

void BlockManager::CheckWindows() const {
  for (size_t w = 0; w < store_.num_windows(); ++w) {
    const WindowBlocks& window = store_.window(w);
    std::vector<int32_t> refs = store_.CountWindowHolds(w);
    int64_t num_reserved = store_.num_reserved_in_flight(w);
    for (const auto& [id, held] : sequences_) {
      const BlockTable::Run run = held.table.windows()[w];
      QUIRE_CHECK(run.begin <= WindowBegin(w, held.num_committed) &&
                  run.end >= NumBlocksFor(held.num_committed) && run.end <= held.table.size())
          << "sequence " << id << " has " << run.begin << " .. " << run.end << " of "
          << held.table.size() << " blocks in a window, " << held.num_committed
          << " tokens committed";
      for (int64_t i = run.begin; i < run.end; ++i) {
        const int32_t block = window.Find(held.table.blocks()[i]);
        QUIRE_CHECK(block >= 0) << "sequence " << id << ", block " << i << " of its table";
        ++refs[block];
      }
      num_reserved += held.access.num_together * WindowDemand(w, held.num_reserved);
    }
    for (const auto& [pin, pinned] : pins_) {
      const auto end = static_cast<int64_t>(pinned.blocks.size());
      num_reserved += end - pinned.begins[w];
      for (int64_t i = pinned.begins[w]; i < end; ++i) {
        const int32_t block = window.Find(pinned.blocks[i]);
        QUIRE_CHECK(block >= 0) << "pin " << pin << ", block " << i;
        ++refs[block];
      }
    }
    for (int32_t i = 0; i < window.num_blocks(); ++i) {
      QUIRE_CHECK(window.refs(i) == refs[i])
          << "block " << i << " of a window: " << window.refs(i) << " holds, in " << refs[i];
    }
    QUIRE_CHECK(window.num_blocks() - window.num_unreserved() == num_reserved);
    for (int32_t i = 0; i < store_.pool().num_blocks(); ++i) {
      QUIRE_CHECK(window.Find(i) < 0 || store_.pool().state(i) != BlockPool::State::kFree)
          << "free block " << i << " has a part in a window";
    }
  }
}

}  // namespace quire::engine
