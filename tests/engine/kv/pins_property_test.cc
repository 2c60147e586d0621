// Runs BlockManager with pins against a cache of hashes. Each slot has the hash of all tokens up to
// its own, and the root whose sequence computed it. A step copies, reads and writes the slots that
// its tables name, so a wrong table, copy or hit, a block reused too early and a hit under a
// foreign root are seen. A naive model says which tokens are pinned and who holds how many blocks.

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "engine/kv/block_manager.h"
#include "kernels/ops/attention_pattern.h"

namespace quire::engine {
namespace {

using Tokens = std::vector<int32_t>;

struct Slot {
  uint64_t hash = 0;
  std::string root;  // of the sequence that computed it
};

struct Totals {
  int64_t operations = 0;
  std::map<std::string, int64_t> counts;
};

class World {
 public:
  World(uint32_t seed, Totals& totals) : random_(seed), totals_(totals) {
    block_size_ = Pick(1, 4);
    depth_ = Pick(0, 1);
    num_blocks_ = Pick(8, 64);
    BlockManagerConfig config{.num_blocks = num_blocks_,
                              .block_size = block_size_,
                              .max_step_tokens = kChunk,
                              .pipeline_depth = depth_};
    for (int w = Pick(0, 2); w > 0; --w) {
      const auto pattern = kernels::AttentionPattern::Window(Pick(1, 3) * 5 + w);
      const auto one = static_cast<int32_t>(WindowBlocksPerSequence(pattern, config));
      config.windows.push_back({.pattern = pattern, .num_blocks = one * Pick(1, 4) + Pick(0, 9)});
    }
    windows_ = config.windows;
    memory_.emplace_back(num_blocks_ * block_size_);
    for (const KvWindow& window : windows_) memory_.emplace_back(window.num_blocks * block_size_);
    blocks_.emplace(config);
  }

  void Run(int64_t num_steps) {
    for (; num_steps > 0; --num_steps) Step();
    while (!in_flight_.empty()) CompleteOldest();
    while (!live_.empty()) Release(live_.begin()->first, "cancel");
    while (!pins_.empty()) Unpin(pins_.begin()->first);
    const BlockStats stats = blocks_->stats();
    ASSERT_EQ(stats.num_free + stats.num_cached, stats.num_total);
    ASSERT_EQ(stats.num_pinned, 0);
    for (size_t w = 0; w < windows_.size(); ++w) {
      ASSERT_EQ(blocks_->window_stats(static_cast<int32_t>(w) + 1).num_held, 0);
    }
  }

 private:
  static constexpr int64_t kChunk = 6;  // the most tokens of a sequence in a step

  struct Live {
    Tokens tokens;
    std::string tenant;
    PinId on = kNoPin;
    CacheAccess access;
    std::string label;  // of the root under which it computes
    std::string owner;  // of the pin's blocks when it started
    int64_t num_planned = 0;
    int64_t num_committed = 0;
    int64_t pinned_tokens = 0;  // of its pin when it started
    int64_t started_in = 0;     // the step
    // What the slots of the planned tokens hold. A shift changes the hashes of the tokens that it
    // moves, and `tokens` are then those that are left.
    std::vector<uint64_t> hashes;
    int64_t num_shifted = 0;  // tokens
    // TryGrow has covered tokens up to room_end, when so many blocks had been sealed.
    int64_t room_end = 0;
    int64_t room_seals = -1;
  };
  struct PinModel {
    Tokens tokens;
    std::string owner;
    int64_t ends_at = 0;  // the step of its expiry
  };
  // What a step does for one sequence. The tables are those at the time of planning.
  struct Work {
    SequenceId id = 0;
    std::vector<uint64_t> hashes;  // of the tokens up to `end`
    int64_t num_shifted = 0;       // before this step was planned
    std::string label;
    std::string owner;  // of the pin; its slots may come from there
    int64_t pinned_tokens = 0;
    int64_t begin = 0;
    int64_t end = 0;
    std::vector<std::vector<int32_t>> tables;  // by KV group; -1: no block
  };
  struct InFlight {
    int64_t step = 0;
    std::vector<kernels::BlockCopy> copies;
    std::vector<kernels::KeyShift> shifts;
    // The places of the copies in each window, as {source, destination}.
    std::vector<std::vector<kernels::BlockCopy>> window_copies;
    std::vector<Work> works;
  };

  int Pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  template <typename Map>
  auto& PickOf(Map& map) {
    return *std::next(map.begin(), Pick(0, static_cast<int>(map.size()) - 1));
  }
  void Count(const std::string& what) {
    ++totals_.operations;
    ++totals_.counts[what];
    blocks_->CheckInvariants();
    CheckPinned();
    CheckCharges();
    CheckRoom();
  }
  // What TryGrow has covered stays writable while nothing is sealed.
  void CheckRoom() {
    for (const auto& [id, live] : live_) {
      if (live.room_seals == blocks_->num_seals()) {
        ASSERT_TRUE(blocks_->Covers(id, live.room_end)) << "sequence " << id;
      }
    }
  }
  void NoteRoom(Live& live, int64_t end) {
    if (!windows_.empty()) return;
    live.room_end = blocks_->NumBlocksFor(end) * block_size_;
    live.room_seals = blocks_->num_seals();
  }
  TenantCharges::Payer PayerOf(const std::string& tenant) {
    const auto [it, is_new] = payers_.try_emplace(tenant);
    if (is_new) it->second = blocks_->charges().Acquire(tenant);
    return it->second;
  }
  // Compares the charges with those that all holds of all blocks give, in fractions of kWhole.
  void CheckCharges() {
    constexpr int64_t kWhole = 2520;  // which 1 to 10 holders divide
    const TenantCharges& charges = blocks_->charges();
    std::map<TenantCharges::Payer, int64_t> want, got;
    for (const std::vector<TenantCharges::Payer>& holds : blocks_->ListHolds()) {
      const std::set<TenantCharges::Payer> holders(holds.begin(), holds.end());
      for (const auto payer : holders) want[payer] += kWhole / std::ssize(holders);
      if (holders.size() > 1) ++totals_.counts["held by several tenants"];
    }
    for (const auto& [tenant, payer] : payers_) {
      if (charges.NumAlone(payer) > 0) got[payer] = kWhole * charges.NumAlone(payer);
    }
    for (const TenantCharges::Segment& segment : charges.Segments()) {
      for (const auto payer : segment.holders) {
        got[payer] += kWhole / std::ssize(segment.holders) * segment.num_blocks;
      }
    }
    ASSERT_EQ(got, want);
    int64_t sum = 0;
    for (const auto& [payer, charge] : got) {
      sum += charge;
      ASSERT_NEAR(charges.Charge(payer) * kWhole, static_cast<double>(charge), 1e-3);
    }
    ASSERT_EQ(sum, kWhole * blocks_->stats().num_held) << "charges add up to the held blocks";
    // Each sequence that lives and each pin holds something for its tenant.
    std::set<TenantCharges::Payer> holding;
    for (const auto& [id, live] : live_) holding.insert(PayerOf(live.tenant));
    for (const auto& [id, pin] : pins_) holding.insert(PayerOf(pin.owner));
    for (const auto payer : holding) ASSERT_TRUE(got.contains(payer));
  }
  std::string RootOf(const std::string& tenant, PinId on) const {
    return CacheRootKey("m", "", tenant, "", "", on);
  }
  static uint64_t Hash(uint64_t before, int32_t token) {
    return (before ^ static_cast<uint64_t>(token + 1)) * 0x9e3779b97f4a7c15u + (before >> 29);
  }
  static int64_t Size(const Tokens& tokens) { return static_cast<int64_t>(tokens.size()); }

  void CheckPinned() {
    // Whole blocks of equal tokens under one root are one block. The others may be.
    std::set<std::pair<std::string, Tokens>> whole;
    int64_t tails = 0;
    for (const auto& [id, pin] : pins_) {
      for (int64_t end = block_size_; end <= Size(pin.tokens); end += block_size_) {
        whole.emplace(pin.owner, Tokens(pin.tokens.begin(), pin.tokens.begin() + end));
      }
      tails += Size(pin.tokens) % block_size_ > 0 ? 1 : 0;
    }
    const BlockStats stats = blocks_->stats();
    ASSERT_GE(stats.num_pinned, std::ssize(whole));
    ASSERT_LE(stats.num_pinned, std::ssize(whole) + tails);
    ASSERT_LE(stats.num_pinned, stats.num_held);
    ASSERT_LE(stats.num_quarantined, stats.num_held - stats.num_pinned);
    ASSERT_TRUE(!in_flight_.empty() || building_ || stats.num_quarantined == 0);
    ASSERT_EQ(stats.num_free + stats.num_cached + stats.num_held, num_blocks_);
  }

  void Step() {
    for (auto it = pins_.begin(); it != pins_.end();) {
      const PinId pin = it->first;
      const bool ends = it->second.ends_at <= step_;
      ++it;
      if (ends) Unpin(pin);
    }
    blocks_->BeginStep(++step_);
    building_ = true;
    works_.clear();
    for (int i = Pick(0, 2); i > 0 && live_.size() < 6; --i) Start();
    std::vector<SequenceId> ids;
    for (const auto& [id, live] : live_) ids.push_back(id);
    for (const SequenceId id : ids) {
      if (Pick(0, 3) > 0) PlanNext(id);
      // What starts in a step runs in it.
      if (Pick(0, 39) == 0 && live_.at(id).started_in != step_) Release(id, "preempt in a step");
    }
    EndStep();
    Between();
    while (in_flight_.size() > static_cast<size_t>(depth_)) CompleteOldest();
    Between();
  }

  // At any time outside of the building of a step.
  void Between() {
    if (!live_.empty() && Pick(0, 7) == 0) Release(PickOf(live_).first, "cancel");
    if (!live_.empty() && Pick(0, 9) == 0) Preempt(PickOf(live_).first);
    if (Pick(0, 5) == 0) TryPin();
    if (!pins_.empty() && Pick(0, 11) == 0) ForkPin();
    if (!pins_.empty() && Pick(0, 15) == 0) Unpin(PickOf(pins_).first);
    if (Pick(0, 9) == 0) {
      blocks_->FreeCached(Pick(1, 5));
      Count("evict");
    }
  }

  void Start() {
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
  void Plan(SequenceId id) {
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
      live.hashes.push_back(Hash(before, live.tokens[live.hashes.size()]));
    }
    work.hashes.assign(live.hashes.begin(), live.hashes.begin() + work.end);
    works_.push_back(std::move(work));
    Count("write");
  }

  void PlanNext(SequenceId id) {
    Live& live = live_.at(id);
    const auto planned = [&](const Work& work) { return work.id == id; };
    if (std::ranges::any_of(works_, planned)) return;
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
  bool TryShift(SequenceId id, Live& live, int64_t num_blocks) {
    const int64_t first = Pick(0, static_cast<int>(num_blocks) - 1) * int64_t{block_size_};
    const auto most = static_cast<int>(num_blocks - first / block_size_);
    const int64_t count = Pick(1, most) * int64_t{block_size_};
    const int64_t size = Size(live.tokens) - count;
    if (!blocks_->TryGrow(id, size + 1, {.first = first, .count = count})) return false;
    live.tokens.erase(live.tokens.begin() + first, live.tokens.begin() + first + count);
    live.hashes.erase(live.hashes.begin() + first, live.hashes.begin() + first + count);
    for (int64_t i = first; i < size; ++i) {
      live.hashes[i] = Hash(live.hashes[i], static_cast<int32_t>(count));
    }
    live.num_planned -= count;
    live.num_committed = std::max(first, live.num_committed - count);
    live.num_shifted += count;
    live.room_seals = -1;
    Count("shift");
    return true;
  }

  void EndStep() {
    // What is to be read and written follows from the tables at the end of planning.
    std::erase_if(works_, [&](const Work& work) { return !live_.contains(work.id); });
    for (Work& work : works_) {
      const auto table = blocks_->Table(work.id);
      work.tables.emplace_back(table.begin(), table.end());
      for (size_t w = 0; w < windows_.size(); ++w) {
        const auto group = static_cast<int32_t>(w) + 1;
        const BlockTable::Run run = blocks_->RunIn(group, work.id);
        std::vector<int32_t>& parts = work.tables.emplace_back(table.size(), -1);
        for (int64_t i = run.begin; i < run.end; ++i) parts[i] = blocks_->BlockIn(group, table[i]);
      }
    }
    InFlight step{.step = step_};
    blocks_->EndStep(!works_.empty(), &step.copies, &step.shifts);
    building_ = false;
    for (size_t w = 0; w < windows_.size(); ++w) {
      auto& copies = step.window_copies.emplace_back();
      const auto group = static_cast<int32_t>(w) + 1;
      for (const kernels::BlockCopy& copy : step.copies) {
        copies.push_back({.source = blocks_->BlockIn(group, copy.source),
                          .destination = blocks_->BlockIn(group, copy.destination)});
      }
    }
    if (works_.empty()) {
      --step_;
      return;
    }
    step.works = works_;
    in_flight_.push_back(std::move(step));
  }

  Slot& SlotOf(size_t group, const Work& work, int64_t i) {
    return memory_[group][work.tables[group][i / block_size_] * block_size_ + i % block_size_];
  }
  void Copy(size_t group, const kernels::BlockCopy& copy) {
    std::copy_n(memory_[group].begin() + copy.source * block_size_, block_size_,
                memory_[group].begin() + copy.destination * block_size_);
  }

  void Execute(const InFlight& step) {
    for (const kernels::BlockCopy& copy : step.copies) Copy(0, copy);
    for (size_t w = 0; w < windows_.size(); ++w) {
      for (const kernels::BlockCopy& copy : step.window_copies[w]) Copy(w + 1, copy);
    }
    for (const kernels::KeyShift& shift : step.shifts) {
      for (int64_t i = 0; i < block_size_; ++i) {
        uint64_t& hash = memory_[0][shift.block * block_size_ + i].hash;
        hash = Hash(hash, shift.distance);
      }
    }
    for (const Work& work : step.works) {
      for (int64_t i = 0; i < work.end; ++i) {
        const uint64_t hash = work.hashes[i];
        for (size_t group = 0; group <= windows_.size(); ++group) {
          if (i < work.begin) {
            const bool is_seen =
                group == 0 || i >= windows_[group - 1].pattern.FirstKey(work.begin);
            if (!is_seen) continue;
            const Slot& slot = SlotOf(group, work, i);
            ASSERT_EQ(slot.hash, hash) << "sequence " << work.id << ", token " << i;
            if (slot.root != work.label) {
              ASSERT_TRUE(i < work.pinned_tokens && slot.root == work.owner)
                  << "sequence " << work.id << ", token " << i << " of another root";
            }
          } else {
            SlotOf(group, work, i) = {.hash = hash, .root = work.label};
          }
        }
      }
    }
  }

  void CompleteOldest() {
    const InFlight step = std::move(in_flight_.front());
    in_flight_.pop_front();
    Execute(step);
    if (::testing::Test::HasFatalFailure()) return;
    blocks_->CompleteStep(step.step);
    CommitTogether(step.works);
    for (const Work& work : step.works) {
      const auto it = live_.find(work.id);
      if (it == live_.end()) continue;  // released meanwhile
      Live& live = it->second;
      // A shift may have been planned while the step was in flight.
      const int64_t end = work.end - (live.num_shifted - work.num_shifted);
      if (windows_.empty() && end / block_size_ == live.num_committed / block_size_ &&
          Pick(0, 2) == 0) {
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
    std::vector<SequenceId> ids;
    for (const auto& [live_id, live] : live_) {
      const SequenceId id = live_id;  // clang 14 captures no structured binding
      const bool is_awaited = std::ranges::any_of(in_flight_, [&](const InFlight& other) {
        return std::ranges::any_of(other.works, [&](const Work& w) { return w.id == id; });
      });
      if (!is_awaited && live.num_committed == Size(live.tokens)) ids.push_back(id);
    }
    for (const SequenceId id : ids) {
      if (live_.size() < 8 && Pick(0, 9) == 0 && blocks_->TryFork(id, next_id_)) {
        live_[next_id_++] = live_.at(id);
        Count("fork");
      }
      if (Pick(0, 9) == 0) Release(id, "finish");
    }
  }

  // Commits those that fill a block, as a step of decodes does.
  void CommitTogether(const std::vector<Work>& works) {
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

  void Release(SequenceId id, const std::string& why) {
    if (why == "finish" && Pick(0, 5) == 0) {
      blocks_->ReleaseUnlisted(id);
    } else {
      blocks_->Release(id);
    }
    live_.erase(id);
    Count(why);
  }

  void Preempt(SequenceId id) {
    preempted_.push_back(live_.at(id));
    preempted_.back().num_committed = 1;  // its tokens and access stay
    // What a shift left need not begin with the tokens of the pin.
    if (preempted_.back().num_shifted > 0) preempted_.back().on = kNoPin;
    Release(id, "preempt");
  }

  void TryPin() {
    if (live_.empty()) return;
    const Live& live = PickOf(live_).second;
    if (live.on == kNoPin) TryPinOf(live);
  }
  void TryPinOf(const Live& live) {
    const auto most = std::min(live.num_committed, num_blocks_ * int64_t{block_size_} / 6);
    if (pins_.size() >= 3 || most == 0) return;
    const Tokens tokens(live.tokens.begin(), live.tokens.begin() + Pick(1, static_cast<int>(most)));
    const PinId pin = next_pin_++;
    if (blocks_->TryPin(pin, RootOf(live.tenant, kNoPin), tokens, PayerOf(live.tenant))) {
      pins_[pin] = {.tokens = tokens, .owner = live.tenant, .ends_at = step_ + Pick(1, 200)};
      Count("pin");
    } else {
      Count("pin in vain");
    }
  }
  void ForkPin() {
    if (pins_.size() >= 3) return;
    const auto& [from, model] = PickOf(pins_);
    Tokens tokens(model.tokens.begin(),
                  model.tokens.begin() + Pick(1, static_cast<int>(Size(model.tokens))));
    const bool differs = Pick(0, 3) == 0;
    if (differs) tokens[Pick(0, static_cast<int>(Size(tokens)) - 1)] ^= 1;
    const PinId pin = next_pin_++;
    const bool pinned = blocks_->TryPinFork(pin, from, tokens);
    ASSERT_FALSE(pinned && differs);
    ASSERT_TRUE(pinned || differs || !windows_.empty());
    if (pinned) {
      pins_[pin] = {.tokens = tokens, .owner = model.owner, .ends_at = step_ + Pick(1, 200)};
    }
    Count(pinned ? "fork of a pin" : "fork of a pin in vain");
  }
  void Unpin(PinId pin) {
    blocks_->Unpin(pin);
    const bool is_due = pins_.at(pin).ends_at <= step_;
    pins_.erase(pin);
    Count(is_due ? "expire" : "unpin");
  }

  std::mt19937 random_;
  Totals& totals_;
  int32_t block_size_ = 0;
  int32_t depth_ = 0;
  int32_t num_blocks_ = 0;
  std::vector<KvWindow> windows_;
  std::vector<std::vector<Slot>> memory_;  // by KV group
  std::optional<BlockManager> blocks_;
  std::map<SequenceId, Live> live_;
  std::map<PinId, PinModel> pins_;
  std::map<std::string, TenantCharges::Payer> payers_;
  std::deque<Live> preempted_;
  std::deque<Tokens> seen_;
  std::vector<Work> works_;
  std::deque<InFlight> in_flight_;
  bool building_ = false;
  int64_t step_ = 0;
  SequenceId next_id_ = 1;
  PinId next_pin_ = 1;
};

// QUIRE_PIN_OPERATIONS: the number of operations, if not the small default.
TEST(PinsPropertyTest, RandomOperationsAgreeWithANaiveModel) {
  const char* given = std::getenv("QUIRE_PIN_OPERATIONS");
  const int64_t wanted = given == nullptr ? 30000 : std::atoll(given);
  Totals totals;
  for (uint32_t seed = 1; totals.operations < wanted; ++seed) {
    World world(seed, totals);
    world.Run(150);
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
  }
  for (const char* what :
       {"append", "cancel", "commit later", "commit together", "evict", "expire", "finish", "fork", "fork of a pin",
        "held by several tenants", "hit behind a pin", "hit on a pin", "match", "pin",
        "pin in vain", "preempt", "shift", "start", "start on a pin", "unpin", "write"}) {
    EXPECT_GT(totals.counts[what], 0) << what;
  }
  for (const auto& [what, count] : totals.counts) {
    RecordProperty(what, std::to_string(count));
    if (given != nullptr) printf("%9ld %s\n", static_cast<long>(count), what.c_str());
  }
}

}  // namespace
}  // namespace quire::engine
