#include "engine/kv/block_manager.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::engine {
namespace {

// When a prefix has ended, each step looks at this many blocks for those that followed it: about
// 10 us of work.
constexpr int32_t kSweptPerStep = 4096;

std::vector<int32_t> WindowSizes(const BlockManagerConfig& config) {
  std::vector<int32_t> sizes;
  for (const KvWindow& window : config.windows) sizes.push_back(window.num_blocks);
  return sizes;
}

}  // namespace

int64_t MaxNewTokens(int64_t num_blocks, int32_t block_size, int64_t prompt_len, int32_t n) {
  const int64_t shared = n > 1 ? prompt_len / block_size : 0;
  const int64_t own = std::max(int64_t{0}, num_blocks - shared) / n;
  return (shared + own) * block_size - prompt_len;
}

int64_t MostBlocks(int32_t block_size, int64_t prompt_len, int64_t num_new, int32_t n) {
  const int64_t shared = n > 1 ? prompt_len / block_size : 0;
  return shared + n * (base::CeilDiv(prompt_len + num_new, block_size) - shared);
}

BlockManager::BlockManager(const BlockManagerConfig& config)
    : config_(config),
      block_size_(config.block_size),
      store_(config.num_blocks, config.block_size, WindowSizes(config), config.eviction,
             config.spill) {
  QUIRE_CHECK(config.spill == nullptr || config.windows.empty());
  for (const KvWindow& window : config.windows) {
    QUIRE_CHECK(!window.pattern.sees_all() && config.max_step_tokens > 0 &&
                window.num_blocks >= WindowBlocksPerSequence(window.pattern, config))
        << "window of " << window.pattern.tokens << " tokens: " << window.num_blocks << " blocks";
  }
  begins_.resize(config.windows.size());
}

bool BlockManager::FitsEmpty(int64_t prompt_len, int64_t num_new, int32_t n) const {
  return num_new <= MaxNewTokens(store_.pool().num_blocks(), block_size_, prompt_len, n);
}

BlockManager::Held& BlockManager::Find(SequenceId id) {
  Found& found = found_[static_cast<size_t>(id) % kNumFound];
  if (found.id == id && found.held != nullptr) return *found.held;
  const auto it = sequences_.find(id);
  QUIRE_CHECK(it != sequences_.end()) << "sequence " << id << " holds nothing";
  found = {.id = id, .held = &it->second};
  return it->second;
}

const BlockManager::Held& BlockManager::Find(SequenceId id) const {
  return const_cast<BlockManager*>(this)->Find(id);
}

BlockManager::Held& BlockManager::Insert(SequenceId id) {
  QUIRE_CHECK(!sequences_.contains(id)) << "sequence " << id << " holds blocks already";
  if (spare_.empty()) return sequences_[id];
  auto node = std::move(spare_.back());
  spare_.pop_back();
  node.key() = id;
  return sequences_.insert(std::move(node)).position->second;
}

void BlockManager::Erase(SequenceId id) {
  Found& found = found_[static_cast<size_t>(id) % kNumFound];
  if (found.id == id) found.held = nullptr;
  spare_.push_back(sequences_.extract(id));
}

void BlockManager::BeginStep(int64_t step, absl::Time now) {
  store_.BeginStep(step, absl::ToUnixMillis(now));
  store_.cache().Sweep(kSweptPerStep);
}

void BlockManager::EndStep(bool submitted, std::vector<kernels::BlockCopy>* copies,
                           std::vector<kernels::KeyShift>* shifts) {
  QUIRE_CHECK(submitted || (copies_.empty() && shifts_.empty()))
      << copies_.size() << " copies and " << shifts_.size() << " shifts of a step that never runs";
  store_.EndStep(submitted);
  num_copies_ += static_cast<int64_t>(copies_.size());
  copies->insert(copies->end(), copies_.begin(), copies_.end());
  shifts->insert(shifts->end(), shifts_.begin(), shifts_.end());
  copies_.clear();
  shifts_.clear();
}

void BlockManager::CompleteStep(int64_t step) { store_.CompleteStep(step); }

void BlockManager::BeginCopies(Held& held) {
  if (held.copy_step == store_.step()) return;
  held.copy_step = store_.step();
  held.sources.clear();
}

void BlockManager::AddCopy(Held& held, int32_t source, int32_t destination) {
  BeginCopies(held);
  held.sources.push_back(source);
  copies_.push_back({.source = source, .destination = destination});
}

void BlockManager::Shift(Held& held, TableShift shift) {
  const int64_t begin = shift.first / block_size_, end = begin + shift.count / block_size_;
  BeginCopies(held);
  held.table.Shift(store_, begin, end, &copies_, &held.sources);
  for (const int32_t block : held.table.blocks().subspan(begin)) {
    shifts_.push_back({.block = block, .distance = static_cast<int32_t>(shift.count)});
  }
  // The step in flight may still be computing tokens before the end of the removed range. Then
  // num_committed - shift.count may be less than shift.first.
  held.num_committed = std::max(shift.first, held.num_committed - shift.count);
  held.access.write = false;
}

void BlockManager::TakeBackCopies(Held& held) {
  if (!store_.building() || held.copy_step != store_.step()) return;
  const auto in_table = [&](int32_t block) {
    return std::ranges::find(held.table.blocks(), block) != held.table.blocks().end();
  };
  std::erase_if(copies_, [&](const auto& copy) { return in_table(copy.destination); });
  std::erase_if(shifts_, [&](const auto& shift) { return in_table(shift.block); });
  const bool in_flight = held.start_step != store_.step();
  for (const int32_t block : held.sources) {
    store_.DropSource(block, held.access.payer, in_flight);
  }
  held.copy_step = -1;
}

BlockManager::StartResult BlockManager::StartSequence(SequenceId id, std::string_view root_key,
                                                      std::span<const int32_t> tokens,
                                                      CacheAccess access, bool allow_copy,
                                                      PinId on) {
  QUIRE_CHECK(store_.building() && !tokens.empty()) << "sequence " << id;
  Held& held = Insert(id);
  const Pinned* pinned = nullptr;
  held.root = AcquireRoot(root_key, on, &pinned);
  held.num_base_blocks = pinned == nullptr ? 0 : pinned->num_whole(block_size_);
  held.access = access;
  held.spills = config_.spill != nullptr && on == kNoPin;
  held.table.set_payer(access.payer);
  held.use = {};
  held.num_committed = 0;
  held.start_step = store_.step();
  held.copy_step = -1;
  held.num_reserved = 0;
  std::ranges::fill(begins_, 0);
  held.table.StartWindows(begins_);
  // If the windows have no room, the sequence cannot start: TryGrow will return false.
  if (!access.read || !TryReserve(held, static_cast<int64_t>(tokens.size()))) return {};

  // The last token is not looked up. It is always computed, because its logits are needed.
  PrefixCache::Match match = Match(held.root, tokens.first(tokens.size() - 1), pinned);
  if (access.write) {
    held.use = store_.cache().BeginUse(held.root, tokens, matched_, store_.now_ms());
  }
  if (!allow_copy) match.partial_block = -1;
  if (store_.num_windows() > 0) TrimToWindows(match);
  const int64_t num_whole = int64_t{match.num_whole} * block_size_;
  for (size_t w = 0; w < begins_.size(); ++w) begins_[w] = WindowBegin(w, num_whole);
  held.table.StartWindows(begins_);
  held.table.AppendShared(store_, matched_);
  held.num_committed = num_whole;
  num_hit_blocks_ += match.num_whole;
  if (match.partial_block >= 0) {
    // The source is held first, so that taking a block for the copy cannot evict the source.
    store_.HoldSource(match.partial_block, access.payer);
    const int32_t destination = held.table.AppendOwn(store_);
    if (destination < 0) {
      store_.DropSource(match.partial_block, access.payer);
    } else {
      held.table.ExtendWindows(store_, held.table.size());
      AddCopy(held, match.partial_block, destination);
      held.num_committed += match.partial_tokens;
      LeaveWindows(held);
      ++num_partial_hits_;
    }
  }
  return {.num_cached = held.num_committed,
          .num_pinned = pinned == nullptr ? 0 : std::min(held.num_committed, pinned->num_tokens)};
}

int64_t BlockManager::NumCached(std::string_view root_key, std::span<const int32_t> tokens,
                                PinId on) {
  const Pinned* pinned = nullptr;
  const RootId root = AcquireRoot(root_key, on, &pinned);
  const PrefixCache::Match match = Match(root, tokens.first(tokens.size() - 1), pinned);
  store_.cache().roots().Release(root);
  return int64_t{match.num_whole} * block_size_ + match.partial_tokens;
}

int64_t BlockManager::NumBlocksToGrow(SequenceId id, int64_t num_tokens, TableShift shift) const {
  const Held& held = Find(id);
  if (shift.count == 0) {
    return held.table.NumBlocksToGrow(store_, block_size_, held.num_committed, num_tokens);
  }
  const int64_t begin = shift.first / block_size_, end = begin + shift.count / block_size_;
  QUIRE_CHECK(begin * block_size_ == shift.first && begin < end &&
              end * block_size_ == shift.first + shift.count && end <= held.table.size())
      << "tokens " << shift.first << " + " << shift.count << " of " << held.table.size()
      << " blocks";
  return held.table.NumBlocksToShift(store_, begin, end) +
         std::max(int64_t{0}, NumBlocksFor(num_tokens) - (held.table.size() - (end - begin)));
}

bool BlockManager::CanGrow(SequenceId id, int64_t num_tokens, int64_t spare) const {
  return NumBlocksToGrow(id, num_tokens) + spare <= num_available() &&
         CanReserve(Find(id), num_tokens);
}

bool BlockManager::Covers(SequenceId id, int64_t num_tokens) const {
  return NumBlocksToGrow(id, num_tokens) == 0 &&
         (store_.num_windows() == 0 || num_tokens <= Find(id).num_reserved);
}

bool BlockManager::CouldGrowLater(SequenceId id, int64_t num_tokens, TableShift shift) const {
  return CanReserveTogether(std::span(&id, 1), num_tokens, /*later=*/true) &&
         NumBlocksToGrow(id, num_tokens, shift) <= num_available() + store_.num_quarantined();
}

bool BlockManager::AnyQuarantined() const {
  bool any = store_.num_quarantined() > 0;
  for (size_t w = 0; w < store_.num_windows(); ++w) any |= store_.num_reserved_in_flight(w) > 0;
  return any;
}

int64_t BlockManager::room() const {
  int64_t room = num_available();
  for (size_t w = 0; w < store_.num_windows(); ++w) room += store_.window(w).num_unreserved();
  return room;
}

void BlockManager::PrepareWrite(SequenceId id, int64_t num_tokens) {
  if (store_.num_windows() == 0) return;
  Held& held = Find(id);
  QUIRE_CHECK(num_tokens <= held.num_reserved) << "sequence " << id;
  held.table.ExtendWindows(store_, NumBlocksFor(num_tokens));
}

bool BlockManager::TryGrow(SequenceId id, int64_t num_tokens, TableShift shift) {
  Held& held = Find(id);
  if (!CanReserve(held, num_tokens)) return false;
  if (shift.count > 0) {
    QUIRE_CHECK(store_.building() && held.start_step != store_.step() && store_.num_windows() == 0)
        << "sequence " << id;
    if (NumBlocksToGrow(id, num_tokens, shift) > store_.num_available()) return false;
    Shift(held, shift);
  }
  kernels::BlockCopy copy;
  bool copied = false;
  if (!held.table.TryGrow(store_, block_size_, held.num_committed, num_tokens, &copy, &copied)) {
    return false;
  }
  QUIRE_CHECK(TryReserve(held, num_tokens));
  if (copied) AddCopy(held, copy.source, copy.destination);
  return true;
}

bool BlockManager::TryFork(SequenceId parent_id, SequenceId child_id) {
  Held& child = Insert(child_id);
  const Held& parent = Find(parent_id);
  child.access = parent.access;
  child.access.num_together = 1;
  child.num_reserved = 0;
  if (!TryReserve(child, parent.num_committed)) {
    Erase(child_id);
    return false;
  }
  Fork(parent, child);
  return true;
}

void BlockManager::Fork(const Held& parent, Held& child) {
  ++num_seals_;
  child.table.ForkFrom(parent.table, store_, block_size_, parent.num_committed);
  store_.cache().roots().AddRef(parent.root);
  child.root = parent.root;
  child.num_base_blocks = parent.num_base_blocks;
  child.spills = parent.spills;
  child.use = parent.use;
  child.use.is_first = false;
  child.num_committed = parent.num_committed;
  child.start_step = -1;
  child.copy_step = -1;
}

void BlockManager::Release(SequenceId id, const CacheUseEnd& end) {
  Held& held = Find(id);
  TakeBackCopies(held);
  const bool untouched = store_.building() && held.start_step == store_.step();
  if (!untouched) store_.cache().EndUse(held.use, end, held.table.blocks(), store_.now_ms());
  held.table.Clear(store_, /*in_flight=*/!untouched);
  for (size_t w = 0; w < store_.num_windows(); ++w) {
    store_.Unreserve(w, held.access.num_together * WindowDemand(w, held.num_reserved),
                     /*in_flight=*/!untouched);
  }
  store_.cache().roots().Release(held.root);
  Erase(id);
}

int64_t BlockManager::FreeCached(int64_t at_most) {
  int64_t num_freed = 0;
  while (num_freed < at_most && store_.FreeCached()) ++num_freed;
  return num_freed;
}

void BlockManager::ReleaseUnlisted(SequenceId id) {
  const std::span<const int32_t> blocks = Find(id).table.blocks();
  for (size_t i = blocks.size(); i-- > 0;) {
    const int32_t block = blocks[i];
    if (!store_.cache().IsListed(block)) continue;
    if (store_.pool().refs(block) > 1 || !store_.cache().IsLeaf(block)) break;
    store_.Discard(block);
  }
  Release(id);
}

void BlockManager::Prefetch(SequenceId id, Part part) const {
  const Found& found = found_[static_cast<size_t>(id) % kNumFound];
  if (found.id != id || found.held == nullptr) return;
  const Held& held = *found.held;
  if (part == Part::kRecord) return __builtin_prefetch(&held, 1);
  const std::span<const int32_t> blocks = held.table.blocks();
  if (blocks.empty()) return;
  if (part == Part::kTable) return __builtin_prefetch(&blocks.back());
  if (part == Part::kLastCounts) return store_.pool().Prefetch(blocks.back());
  store_.Prefetch(blocks.back());
  if (blocks.size() > 1) {
    store_.cache().PrefetchLinks(blocks.back(), blocks[blocks.size() - 2]);
  }
}

std::span<const int32_t> BlockManager::Table(SequenceId id) const {
  return Find(id).table.blocks();
}

BlockTable::Run BlockManager::RunIn(int32_t kv_group, SequenceId id) const {
  const BlockTable& table = Find(id).table;
  return kv_group == 0 ? BlockTable::Run{0, table.size()} : table.windows()[kv_group - 1];
}

BlockManager::Exclusive BlockManager::ExclusiveOf(SequenceId id) const {
  const Held& held = Find(id);
  Exclusive exclusive;
  int64_t begin = 0;
  for (const int32_t block : held.table.blocks()) {
    if (store_.pool().refs(block) == 1) {
      ++exclusive.num_blocks;
      exclusive.num_tokens +=
          std::clamp(held.num_committed - begin, int64_t{0}, int64_t{block_size_});
    }
    begin += block_size_;
  }
  return exclusive;
}

BlockStats BlockManager::stats() const {
  const BlockPool& pool = store_.pool();
  return {.num_total = pool.num_blocks(),
          .num_free = pool.num_free(),
          .num_cached = pool.num_cached(),
          .num_held = pool.num_held(),
          .num_quarantined = store_.num_quarantined(),
          .num_pinned = pool.num_pinned(),
          .num_hit_blocks = num_hit_blocks_,
          .num_partial_hits = num_partial_hits_,
          .num_copies = num_copies_,
          .num_evictions = store_.num_evictions(),
          .num_deduplicated = num_deduplicated_,
          .num_roots = store_.cache().roots().size()};
}

void BlockManager::CheckInvariants() const {
  store_.CheckInvariants();
  CheckWindows();
  const BlockPool& pool = store_.pool();
  std::vector<int32_t> tables(pool.num_blocks(), 0);
  for (const auto& [id, held] : sequences_) {
    const std::span<const int32_t> blocks = held.table.blocks();
    QUIRE_CHECK(held.num_committed <= held.table.size() * block_size_) << "sequence " << id;
    for (size_t i = 0; i < blocks.size(); ++i) {
      ++tables[blocks[i]];
      const int64_t own = held.num_committed - static_cast<int64_t>(i) * block_size_;
      if (!pool.listed(blocks[i])) continue;
      QUIRE_CHECK(static_cast<int64_t>(store_.cache().Tokens(blocks[i]).size()) <=
                  std::max(own, int64_t{0}))
          << "sequence " << id << " holds more tokens than it committed, block " << blocks[i];
    }
  }
  store_.charges().CheckInvariants(ListHolds());
  std::vector<RootId> roots;
  for (const auto& [id, held] : sequences_) roots.push_back(held.root);
  store_.cache().CheckRoots(roots);
  const std::vector<int32_t> handles = store_.CountHandles();
  std::vector<int32_t> pins(pool.num_blocks(), 0);
  CheckPins(pins);
  for (int32_t i = 0; i < pool.num_blocks(); ++i) {
    QUIRE_CHECK(pool.table_refs(i) == tables[i])
        << "block " << i << ": " << pool.table_refs(i) << " table references, in " << tables[i];
    QUIRE_CHECK(pool.handle_refs(i) == handles[i])
        << "block " << i << ": " << pool.handle_refs(i) << " handles, " << handles[i] << " known";
    QUIRE_CHECK(pool.pin_refs(i) == pins[i])
        << "block " << i << ": " << pool.pin_refs(i) << " pins, " << pins[i] << " known";
  }
  const BlockStats s = stats();
  QUIRE_CHECK(s.num_free + s.num_cached + s.num_held == s.num_total);
}

}  // namespace quire::engine
