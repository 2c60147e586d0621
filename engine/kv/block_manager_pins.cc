// The functions of BlockManager for pins: blocks that are held for sequences to come, and the
// lookup of a sequence that runs on a pin.

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/kv/block_manager.h"

namespace quire::engine {

std::vector<int64_t> PinnedBlocks(std::span<const kernels::AttentionPattern> windows,
                                  int32_t block_size, int64_t num_tokens) {
  const int64_t end = base::CeilDiv(num_tokens, block_size);
  std::vector<int64_t> blocks{end};
  for (const kernels::AttentionPattern& pattern : windows) {
    blocks.push_back(end - pattern.FirstKey((end - 1) * block_size) / block_size);
  }
  return blocks;
}

RootId BlockManager::AcquireRoot(std::string_view root_key, PinId on, const Pinned** pinned) {
  CacheRoots& roots = store_.cache().roots();
  *pinned = nullptr;
  if (on == kNoPin) return roots.Acquire(root_key);
  if (const auto it = pins_.find(on); it != pins_.end()) {
    *pinned = &it->second;
    return roots.Acquire(root_key, on, it->second.num_whole(block_size_) * block_size_);
  }
  // The blocks under this root begin with the first token. No other key is a key of CacheRootKey
  // and one character.
  ended_key_.assign(root_key);
  ended_key_.push_back('!');
  return roots.Acquire(ended_key_);
}

PrefixCache::Match BlockManager::Match(RootId root, std::span<const int32_t> tokens,
                                       const Pinned* pinned) {
  matched_.clear();
  if (pinned == nullptr) return store_.cache().Find(root, tokens, &matched_);
  const auto size = static_cast<int64_t>(tokens.size());
  const int64_t base = pinned->num_whole(block_size_);
  const int64_t num_shared = std::min(base, size / block_size_);
  matched_.assign(pinned->blocks.begin(), pinned->blocks.begin() + num_shared);
  PrefixCache::Match match;
  if (num_shared == base) {
    match = store_.cache().Find(root, tokens.subspan(base * block_size_), &matched_);
  }
  if (match.num_whole == 0) {
    // What others computed under this root begins with the tokens of the pin's last block. Among
    // equals the pinned block is copied, which is held anyway.
    const int64_t in_next = std::min(pinned->num_tokens, size) - num_shared * block_size_;
    if (in_next > 0 && in_next >= match.partial_tokens) {
      match.partial_block = pinned->blocks[num_shared];
      match.partial_tokens = static_cast<int32_t>(in_next);
    }
  }
  match.num_whole = static_cast<int32_t>(matched_.size());
  return match;
}

bool BlockManager::TryPin(PinId pin, std::string_view root_key, std::span<const int32_t> tokens,
                          TenantCharges::Payer payer) {
  QUIRE_CHECK(pin != kNoPin && !pins_.contains(pin) && !tokens.empty()) << "pin " << pin;
  CacheRoots& roots = store_.cache().roots();
  const RootId root = roots.Acquire(root_key);
  const PrefixCache::Match match = Match(root, tokens, nullptr);
  roots.Release(root);
  const auto in_last = static_cast<int32_t>(tokens.size() % block_size_);
  if (match.num_whole < static_cast<int64_t>(tokens.size()) / block_size_) return false;
  if (in_last > 0) {
    if (match.partial_tokens < in_last) return false;
    matched_.push_back(match.partial_block);
  }
  Pinned pinned{.blocks = matched_,
                .num_tokens = static_cast<int64_t>(tokens.size()),
                .begins = {},
                .payer = payer};
  if (!TryPinParts(pinned)) return false;
  AddPin(pin, std::move(pinned));
  return true;
}

int64_t BlockManager::TryPinTable(PinId pin, SequenceId id) {
  QUIRE_CHECK(pin != kNoPin && !pins_.contains(pin)) << "pin " << pin;
  const Held& held = Find(id);
  const std::span<const int32_t> blocks =
      held.table.blocks().first(static_cast<size_t>(NumBlocksFor(held.num_committed)));
  int64_t left = held.num_committed;
  for (const int32_t block : blocks) {
    const PrefixCache& cache = store_.cache();
    const bool has_all = cache.IsListed(block) &&
                         std::ssize(cache.Tokens(block)) >= std::min<int64_t>(left, block_size_);
    if (!has_all) return 0;
    left -= block_size_;
  }
  Pinned pinned{.blocks = {blocks.begin(), blocks.end()},
                .num_tokens = held.num_committed,
                .begins = {},
                .payer = held.table.payer()};
  if (pinned.num_tokens == 0 || !TryPinParts(pinned)) return 0;
  AddPin(pin, std::move(pinned));
  return held.num_committed;
}

bool BlockManager::TryPinFork(PinId pin, PinId from, std::span<const int32_t> tokens) {
  QUIRE_CHECK(pin != kNoPin && !pins_.contains(pin) && !tokens.empty()) << "pin " << pin;
  const auto other = pins_.find(from);
  if (other == pins_.end() || other->second.num_tokens < std::ssize(tokens)) return false;
  const int64_t num_blocks = NumBlocksFor(std::ssize(tokens));
  const auto end = other->second.blocks.begin() + num_blocks;
  Pinned pinned{.blocks = {other->second.blocks.begin(), end},
                .num_tokens = std::ssize(tokens),
                .begins = {},
                .payer = other->second.payer};
  for (const int32_t block : pinned.blocks) {
    const std::span<const int32_t> content =
        tokens.first(std::min<size_t>(tokens.size(), static_cast<size_t>(block_size_)));
    const std::span<const int32_t> held = store_.cache().Tokens(block);
    if (!std::ranges::equal(content, held.first(content.size()))) return false;
    tokens = tokens.subspan(content.size());
  }
  if (!TryPinParts(pinned)) return false;
  AddPin(pin, std::move(pinned));
  return true;
}

void BlockManager::AddPin(PinId pin, Pinned pinned) {
  ++num_seals_;
  // The root's end first, since the parent of a held block must be held.
  constexpr size_t kAhead = 16;
  for (size_t i = 0; i < pinned.blocks.size(); ++i) {
    if (i + kAhead < pinned.blocks.size()) store_.PrefetchCounts(pinned.blocks[i + kAhead]);
    store_.Pin(pinned.blocks[i], pinned.payer);
  }
  store_.cache().roots().BeginPrefix(pin);
  pin_ends_.emplace(pinned.blocks.back(), pin);
  pins_.emplace(pin, std::move(pinned));
}

// Holds the parts to which a window reaches back from the first token of the last block, and so
// from every token after it.
bool BlockManager::TryPinParts(Pinned& pinned) {
  const auto end = static_cast<int64_t>(pinned.blocks.size());
  for (size_t w = 0; w < store_.num_windows(); ++w) {
    const int64_t begin = WindowBegin(w, (end - 1) * block_size_);
    pinned.begins.push_back(begin);
    for (int64_t i = begin; i < end; ++i) {
      if (store_.window(w).Find(pinned.blocks[i]) < 0) return false;
    }
    if (end - begin > store_.window(w).num_unreserved()) return false;
  }
  for (size_t w = 0; w < store_.num_windows(); ++w) {
    WindowBlocks& window = store_.window(w);
    QUIRE_CHECK(window.TryReserve(end - pinned.begins[w]));
    for (int64_t i = pinned.begins[w]; i < end; ++i) window.Hold(window.Find(pinned.blocks[i]));
  }
  return true;
}

void BlockManager::Unpin(PinId pin) {
  const auto it = pins_.find(pin);
  QUIRE_CHECK(it != pins_.end()) << "pin " << pin << " holds nothing";
  const Pinned pinned = std::move(it->second);
  pins_.erase(it);
  for (auto [i, last] = pin_ends_.equal_range(pinned.blocks.back()); i != last; ++i) {
    if (i->second != pin) continue;
    pin_ends_.erase(i);
    break;
  }
  const auto end = static_cast<int64_t>(pinned.blocks.size());
  for (size_t w = 0; w < store_.num_windows(); ++w) {
    for (int64_t i = end; i-- > pinned.begins[w];) {
      store_.window(w).Drop(store_.window(w).Find(pinned.blocks[i]));
    }
    store_.window(w).Unreserve(end - pinned.begins[w]);
  }
  for (int64_t i = end; i-- > 0;) store_.Unpin(pinned.blocks[i], pinned.payer);
  store_.cache().EndPrefix(pin);
}

std::vector<std::vector<TenantCharges::Payer>> BlockManager::ListHolds() const {
  std::vector<std::vector<TenantCharges::Payer>> holds(store_.pool().num_blocks());
  for (const auto& [id, held] : sequences_) {
    QUIRE_CHECK(held.table.payer() == held.access.payer) << "sequence " << id;
    for (const int32_t block : held.table.blocks()) holds[block].push_back(held.access.payer);
  }
  for (const auto& [pin, pinned] : pins_) {
    for (const int32_t block : pinned.blocks) holds[block].push_back(pinned.payer);
  }
  store_.ListHandles(holds);
  return holds;
}

void BlockManager::CheckPins(std::vector<int32_t>& pin_refs) const {
  for (const auto& [pin, pinned] : pins_) {
    QUIRE_CHECK(std::ssize(pinned.blocks) == NumBlocksFor(pinned.num_tokens)) << "pin " << pin;
    int64_t left = pinned.num_tokens;
    for (const int32_t block : pinned.blocks) {
      ++pin_refs[block];
      QUIRE_CHECK(std::ssize(store_.cache().Tokens(block)) >= std::min<int64_t>(left, block_size_))
          << "pin " << pin << ", block " << block;
      left -= block_size_;
    }
  }
}

}  // namespace quire::engine
