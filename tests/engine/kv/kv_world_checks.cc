#include <set>
#include <utility>

#include "gtest/gtest.h"

#include "tests/engine/kv/kv_world.h"

namespace quire::engine {

void KvWorld::Count(const std::string& what) {
  ++totals_.operations;
  ++totals_.counts[what];
  blocks_->CheckInvariants();
  CheckPinned();
  CheckCharges();
  CheckRoom();
  CheckBeams();
}

// What TryGrow has covered stays writable while nothing is sealed.
void KvWorld::CheckRoom() {
  for (const auto& [id, live] : live_) {
    if (live.room_seals == blocks_->num_seals()) {
      ASSERT_TRUE(blocks_->Covers(id, live.room_end)) << "sequence " << id;
    }
  }
}

// Compares the charges with those that all holds of all blocks give, in fractions of kWhole.
void KvWorld::CheckCharges() {
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
  for (const auto& [id, load] : loads_) holding.insert(PayerOf(load.tenant));
  for (const auto payer : holding) ASSERT_TRUE(got.contains(payer));
}

void KvWorld::CheckPinned() {
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

// What beams compute is not made available to others.
void KvWorld::CheckBeams() {
  for (const auto& [beams_id, beams] : beams_) {
    for (const SequenceId id : beams.ids) {
      const std::span<const int32_t> table = blocks_->Table(id);
      for (int64_t i = beams.num_joint / block_size_; i < std::ssize(table); ++i) {
        ASSERT_FALSE(disk_ && disk_->IsOffered(table[i]))
            << "beam " << id << ", block " << table[i];
      }
    }
  }
}

}  // namespace quire::engine
