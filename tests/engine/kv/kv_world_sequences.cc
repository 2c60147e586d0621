// The life of a sequence.

#include <algorithm>
#include <utility>

#include "gtest/gtest.h"

#include "tests/engine/kv/kv_world.h"

namespace quire::engine {

void KvWorld::Start() {
  Live live;
  live.tenant = std::string(1, static_cast<char>('a' + Pick(0, 2)));
  if (!preempted_.empty() && Pick(0, 1) == 0) {
    live = std::move(preempted_.front());
    preempted_.pop_front();
  } else if (!pins_.empty() && Pick(0, 1) == 0) {
    const auto& [pin, model] = PickOf(pins_);
    live.on = pin;
    live.tokens = model.tokens;
  } else if (!seen_.empty() && Pick(0, 2) > 0) {
    const Tokens& other = seen_[Pick(0, static_cast<int>(seen_.size()) - 1)];
    live.tokens.assign(other.begin(), other.begin() + Pick(0, static_cast<int>(other.size())));
  }
  if (live.num_committed == 0) {
    live.access = {.read = Pick(0, 9) > 0, .write = Pick(0, 9) > 0};
    live.access.payer = PayerOf(live.tenant);
    for (int n = Pick(live.tokens.empty() ? 1 : 0, 5); n > 0; --n) {
      live.tokens.push_back(Pick(0, 1));
    }
  }
  live.access.num_together = Pick(0, 3) == 0 ? Pick(2, 4) : 1;
  const bool pinned = live.on != kNoPin && blocks_->IsPinned(live.on);
  live.pinned_tokens = pinned ? Size(pins_.at(live.on).tokens) : 0;
  live.owner = pinned ? RootOf(pins_.at(live.on).owner, kNoPin) : "";
  live.label = RootOf(live.tenant, live.on) + (live.on != kNoPin && !pinned ? "ended" : "");
  live.started_in = step_;
  live.hashes.clear();
  live.num_shifted = 0;
  live.room_seals = -1;
  const SequenceId id = next_id_++;
  const int64_t size = Size(live.tokens);
  // The source of the copy may be one available block, its destination takes another.
  const bool may_copy = blocks_->num_available() > 1;
  const auto start = blocks_->StartSequence(id, RootOf(live.tenant, live.on), live.tokens,
                                            live.access, /*allow_copy=*/true, live.on);
  ASSERT_LE(start.num_pinned, std::min(start.num_cached, live.pinned_tokens));
  live.num_planned = live.num_committed = start.num_cached;
  Count(live.on != kNoPin ? "start on a pin" : "start");
  if (start.num_cached > 0) Count("match");
  live_[id] = live;
  if (!blocks_->TryGrow(id, size)) {
    Release(id, "start in vain");
    return;
  }
  NoteRoom(live_.at(id), size);
  if (pinned && live.access.read) {
    // What is pinned is there, down to the token; with windows perhaps without the last block.
    const int64_t all = std::min(live.pinned_tokens, size - 1);
    const int64_t least = may_copy && windows_.empty() ? all : all / block_size_ * block_size_;
    ASSERT_GE(start.num_cached, least);
    ++totals_.counts["hit on a pin"];
    if (start.num_cached > live.pinned_tokens) ++totals_.counts["hit behind a pin"];
  }
  Plan(id);
}

// Plans the next tokens of a sequence, which has blocks for them.
void KvWorld::Plan(SequenceId id) {
  Live& live = live_.at(id);
  Work work{.id = id,
            .num_shifted = live.num_shifted,
            .label = live.label,
            .owner = live.owner,
            .pinned_tokens = live.pinned_tokens,
            .begin = live.num_planned,
            .end = std::min(Size(live.tokens), live.num_planned + kChunk)};
  blocks_->PrepareWrite(id, work.end);
  live.num_planned = work.end;
  while (std::ssize(live.hashes) < work.end) {
    const uint64_t before = live.hashes.empty() ? 0 : live.hashes.back();
    live.hashes.push_back(HashAfter(before, live.tokens[live.hashes.size()]));
  }
  work.hashes.assign(live.hashes.begin(), live.hashes.begin() + work.end);
  works_.push_back(std::move(work));
  Count("write");
}

void KvWorld::PlanNext(SequenceId id) {
  Live& live = live_.at(id);
  if (IsPlanned(id)) return;
  if (live.beams != kNoBeams) return PlanBeams(beams_.at(live.beams));
  if (live.num_planned < Size(live.tokens)) {
    // The blocks were taken at the start; a shared tail is copied now.
    if (blocks_->TryGrow(id, live.num_planned + 1)) Plan(id);
    return;
  }
  const int64_t num_blocks = std::ssize(blocks_->Table(id));
  if (windows_.empty() && live.started_in != step_ && num_blocks > 1 &&
      Size(live.tokens) == num_blocks * block_size_ && Pick(0, 3) == 0) {
    if (!TryShift(id, live, num_blocks)) return;
  } else if (blocks_->TryGrow(id, Size(live.tokens) + 1)) {
    NoteRoom(live, Size(live.tokens) + 1);
  } else {
    return;
  }
  live.tokens.push_back(Pick(0, 1));
  Count("append");
  Plan(id);
}

// Takes some blocks out of a full table and makes room for one more token.
bool KvWorld::TryShift(SequenceId id, Live& live, int64_t num_blocks) {
  const int64_t first = Pick(0, static_cast<int>(num_blocks) - 1) * int64_t{block_size_};
  const auto most = static_cast<int>(num_blocks - first / block_size_);
  const int64_t count = Pick(1, most) * int64_t{block_size_};
  const int64_t size = Size(live.tokens) - count;
  if (!blocks_->TryGrow(id, size + 1, {.first = first, .count = count})) return false;
  live.tokens.erase(live.tokens.begin() + first, live.tokens.begin() + first + count);
  live.hashes.erase(live.hashes.begin() + first, live.hashes.begin() + first + count);
  for (int64_t i = first; i < size; ++i) {
    live.hashes[i] = HashAfter(live.hashes[i], static_cast<int32_t>(count));
  }
  live.num_planned -= count;
  live.num_committed = std::max(first, live.num_committed - count);
  live.num_shifted += count;
  live.room_seals = -1;
  Count("shift");
  return true;
}

bool KvWorld::IsPlanned(SequenceId id) const {
  return std::ranges::any_of(works_, [id](const Work& work) { return work.id == id; });
}

bool KvWorld::IsAwaited(SequenceId id) const {
  return std::ranges::any_of(in_flight_, [id](const InFlight& step) {
    return std::ranges::any_of(step.works, [id](const Work& work) { return work.id == id; });
  });
}

void KvWorld::NoteRoom(Live& live, int64_t end) {
  if (!windows_.empty()) return;
  live.room_end = blocks_->NumBlocksFor(end) * block_size_;
  live.room_seals = blocks_->num_seals();
}

void KvWorld::Commit(const std::vector<Work>& works) {
  CommitTogether(works);
  for (const Work& work : works) {
    const auto it = live_.find(work.id);
    if (it == live_.end()) continue;  // released meanwhile
    Live& live = it->second;
    // A shift may have been planned while the step was in flight.
    const int64_t end = work.end - (live.num_shifted - work.num_shifted);
    if (windows_.empty() && live.beams == kNoBeams &&
        end / block_size_ == live.num_committed / block_size_ && Pick(0, 2) == 0) {
      Count("commit later");
      continue;
    }
    blocks_->Commit(work.id, live.tokens, end);
    live.num_committed = end;
    if (end == Size(live.tokens) && Pick(0, 9) == 0) seen_.push_back(live.tokens);
    if (seen_.size() > 20) seen_.pop_front();
    Count("commit");
    // As an internal request does: commit, pin, end.
    if (live.on == kNoPin && Pick(0, 9) == 0) TryPinOf(live);
  }
}

// Commits those that fill a block, as a step of decodes does.
void KvWorld::CommitTogether(const std::vector<Work>& works) {
  if (Pick(0, 1) == 0) return;
  std::vector<BlockManager::Computed> all;
  for (const Work& work : works) {
    const auto it = live_.find(work.id);
    if (it == live_.end()) continue;
    const int64_t end = work.end - (it->second.num_shifted - work.num_shifted);
    if (end % block_size_ > 0 || end <= it->second.num_committed) continue;
    all.push_back({.id = work.id, .tokens = it->second.tokens, .num_tokens = end});
    it->second.num_committed = end;
  }
  blocks_->CommitAll(all);
  if (all.size() > 1) Count("commit together");
}

// What may follow when all tokens of a sequence are committed, and no step in flight writes for it.
void KvWorld::Continue(SequenceId id) {
  if (const BeamsId beams = live_.at(id).beams; beams != kNoBeams) {
    const bool is_first = beams_.at(beams).ids.front() == id;
    if (is_first && Pick(0, 2) > 0) Reorder(beams_.at(beams));
    if (is_first && Pick(0, 9) == 0) Release(id, "finish");
    return;
  }
  if (live_.size() < kMostForks && Pick(0, 9) == 0 && blocks_->TryFork(id, next_id_)) {
    live_[next_id_] = live_.at(id);
    live_[next_id_++].access.num_together = 1;
    Count("fork");
  }
  const bool may_become = live_.at(id).access.num_together > 1 && live_.size() < kMostForks;
  if (may_become && Pick(0, 3) == 0) BecomeBeams(id);
  if (Pick(0, 9) == 0) Release(id, "finish");
}

void KvWorld::Release(SequenceId id, const std::string& why) {
  const BeamsId beams = live_.at(id).beams;
  if (beams != kNoBeams) {
    const std::vector<SequenceId>& ids = beams_.at(beams).ids;
    for (size_t k = ids.size(); k-- > 0;) {
      blocks_->Release(ids[k]);
      live_.erase(ids[k]);
    }
    beams_.erase(beams);
    Count(why + " of beams");
    return;
  }
  if (why == "finish" && Pick(0, 5) == 0) {
    if (disk_) disk_->set_discards_all(true);
    blocks_->ReleaseUnlisted(id);
    if (disk_) disk_->set_discards_all(false);
  } else {
    blocks_->Release(id);
  }
  live_.erase(id);
  Count(why);
}

void KvWorld::Preempt(SequenceId id) {
  preempted_.push_back(live_.at(id));
  preempted_.back().num_committed = 1;  // its tokens and access stay
  preempted_.back().beams = kNoBeams;   // one of them is to come back
  // What a shift left need not begin with the tokens of the pin.
  if (preempted_.back().num_shifted > 0) preempted_.back().on = kNoPin;
  Release(id, "preempt");
}

}  // namespace quire::engine
