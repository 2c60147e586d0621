// The functions of BlockManager that make what a sequence has computed available to others.

#include <algorithm>

#include "base/check.h"
#include "engine/kv/block_manager.h"

namespace quire::engine {

void BlockManager::Commit(SequenceId id, std::span<const int32_t> tokens, int64_t num_computed) {
  Commit({.id = id, .tokens = tokens, .num_tokens = num_computed}, /*last=*/nullptr);
}

void BlockManager::Commit(const Computed& computed, const ChainHash* last) {
  const auto& [id, tokens, num_computed] = computed;
  Held& held = Find(id);
  QUIRE_CHECK(num_computed >= held.num_committed &&
              num_computed <= static_cast<int64_t>(tokens.size()) &&
              num_computed <= held.table.size() * block_size_)
      << "sequence " << id << ": " << num_computed << " tokens after " << held.num_committed;
  while (held.access.write && held.num_committed < num_computed) {
    const int64_t block_end = (held.num_committed / block_size_ + 1) * block_size_;
    CommitInBlock(held, tokens, std::min(num_computed, block_end), last);
  }
  held.num_committed = num_computed;
  LeaveWindows(held);
}

void BlockManager::CommitAll(std::span<const Computed> all) {
  // Each stage needs what the one before has begun to load.
  constexpr size_t kStage = 8;  // sequences between two stages
  constexpr size_t kNumStages = 5;
  const auto at = [&](size_t i, size_t stage) {
    const size_t passed = stage * kStage;
    return i >= passed && i - passed < all.size() ? &all[i - passed] : nullptr;
  };
  hashes_.resize(all.size());
  for (size_t i = 0; i < all.size() + kNumStages * kStage; ++i) {
    if (const Computed* const c = at(i, 0)) Prefetch(c->id, Part::kRecord);
    if (const Computed* const c = at(i, 1)) Prefetch(c->id, Part::kTable);
    if (const Computed* const c = at(i, 2)) Prefetch(c->id, Part::kLastBlock);
    if (const Computed* const c = at(i, 3)) hashes_[c - all.data()] = HashLast(*c);
    if (const Computed* const c = at(i, 4)) {
      const std::optional<ChainHash>& hash = hashes_[c - all.data()];
      if (hash) store_.cache().PrefetchChain(*hash);
    }
    if (const Computed* const c = at(i, 5)) {
      const std::optional<ChainHash>& hash = hashes_[c - all.data()];
      Commit(*c, hash ? &*hash : nullptr);
    }
  }
}

std::optional<ChainHash> BlockManager::HashLast(const Computed& computed) const {
  const Held& held = Find(computed.id);
  const int64_t begin = computed.num_tokens - block_size_;
  const int64_t i = begin / block_size_;
  // The hash of the block before is known if that block is committed.
  if (held.num_committed < begin || i < held.num_base_blocks || !held.access.write) return {};
  const int32_t parent = i == held.num_base_blocks ? -1 : held.table.blocks()[i - 1];
  const std::span<const int32_t> tokens = computed.tokens.subspan(begin, block_size_);
  const ChainHash hash = store_.cache().HashOf(held.root, parent, tokens);
  store_.cache().PrefetchBuckets(held.root, parent, tokens[0], hash);
  return hash;
}

void BlockManager::CommitInBlock(Held& held, std::span<const int32_t> tokens, int64_t end,
                                 const ChainHash* whole) {
  PrefixCache& cache = store_.cache();
  const int64_t i = held.num_committed / block_size_;
  const int64_t begin = i * block_size_;
  const int32_t block = held.table.blocks()[i];
  if (i < held.num_base_blocks) {
    // The tokens of the pin. They are listed where the pin has them. A block of the sequence's own
    // with these tokens stays private.
    held.num_committed = end;
    return;
  }
  if (cache.IsListed(block) && store_.pool().pin_refs(block) > 0) {
    // The block was pinned while a step in flight wrote into it. Its tokens stay as they are, and
    // the sequence, which copies the block before its next write, lists nothing more.
    held.access.write = false;
    return;
  }
  const int32_t parent = i == held.num_base_blocks ? -1 : held.table.blocks()[i - 1];
  const std::span<const int32_t> content = tokens.subspan(begin, end - begin);

  const bool fills = end - begin == block_size_;
  ChainHash hash;
  if (fills) {
    hash = whole != nullptr ? *whole : cache.HashOf(held.root, parent, content);
    if (const int32_t known = cache.FindWhole(held.root, parent, content, hash); known >= 0) {
      if (!held.access.read) {
        // The sequence may not read the cache, so it keeps the block that it computed itself. It
        // lists no later blocks, because nothing can be listed after an unlisted block.
        held.access.write = false;
        if (cache.IsListed(block)) store_.Unlist(block);
        return;
      }
      if (cache.IsListed(block)) store_.Unlist(block);
      held.table.Replace(store_, i, known);
      ++num_deduplicated_;
      held.num_committed = end;
      return;
    }
    if (held.spills && !store_.HasCompleted(held.copy_step)) {
      // The block before this copy was pinned while a step in flight wrote into it, and the step
      // that copies it is in flight. So this block has its K and V too late to be offered, and
      // nothing that follows can be.
      held.access.write = false;
      return;
    }
  }
  if (cache.IsListed(block)) {
    QUIRE_CHECK(static_cast<int64_t>(cache.Tokens(block).size()) == held.num_committed - begin)
        << "block " << block << " was written by another";
    cache.Append(block, tokens.subspan(held.num_committed, end - held.num_committed),
                 fills ? &hash : nullptr);
  } else {
    store_.List(block, held.root, parent, content, fills ? &hash : nullptr);
  }
  held.num_committed = end;
  if (held.spills && fills) {
    config_.spill->Offer(block, parent, cache.roots().key(held.root), cache.Tokens(block));
  }
}

}  // namespace quire::engine
