#include "engine/kv/tenant_charges.h"

#include <algorithm>

#include "base/check.h"

namespace quire::engine {

TenantCharges::TenantCharges(int32_t num_blocks) : blocks_(num_blocks) {
  QUIRE_CHECK(Acquire("") == kNamelessPayer);  // and is never released
}

TenantCharges::Payer TenantCharges::Acquire(std::string_view tenant) {
  if (const auto it = by_name_.find(tenant); it != by_name_.end()) {
    ++accounts_[it->second].num_refs;
    return it->second;
  }
  base::MutexLock lock(mu_);
  if (unused_accounts_.empty()) {
    unused_accounts_.push_back(static_cast<Payer>(accounts_.size()));
    accounts_.emplace_back();
  }
  const Payer payer = unused_accounts_.back();
  unused_accounts_.pop_back();
  Account& account = accounts_[payer];
  account.tenant = std::string(tenant);
  account.num_refs = 1;
  account.used = true;
  by_name_.emplace(account.tenant, payer);
  return payer;
}

void TenantCharges::Release(Payer payer) {
  Account& account = accounts_[payer];
  QUIRE_CHECK(account.num_refs > 0) << "payer " << payer;
  if (--account.num_refs == 0 && account.num_blocks == 0) Forget(payer);
}

void TenantCharges::Forget(Payer payer) {
  base::MutexLock lock(mu_);
  Account& account = accounts_[payer];
  by_name_.erase(account.tenant);
  account.used = false;
  unused_accounts_.push_back(payer);
}

// Only this thread writes the counter, so no other write can come between.
void TenantCharges::AddAlone(Payer payer, int64_t num) {
  std::atomic<int64_t>& alone = accounts_[payer].num_alone;
  alone.store(alone.load(std::memory_order_relaxed) + num, std::memory_order_relaxed);
}

void TenantCharges::AddBlocks(Payer payer, int64_t num) {
  Account& account = accounts_[payer];
  account.num_blocks += num;
  if (account.num_blocks == 0 && account.num_refs == 0) Forget(payer);
}

void TenantCharges::Hold(int32_t block_id, Payer payer) {
  Block& block = blocks_[block_id];
  if (NumHolders(block) == 0) {
    block.first = payer;
    block.first_holds = 1;
    block.of = payer;
    SetNumHolders(block, 1);
    AddAlone(payer, 1);
    AddBlocks(payer, 1);
  } else if (block.first == payer && block.first_holds > 0) {
    ++block.first_holds;
  } else if (other_holds_[KeyOf(block_id, payer)]++ == 0) {
    Join(block, payer);
  }
}

void TenantCharges::Drop(int32_t block_id, Payer payer) {
  Block& block = blocks_[block_id];
  if (block.first == payer && block.first_holds > 0) {
    if (--block.first_holds == 0) Leave(block, payer);
    return;
  }
  const auto it = other_holds_.find(KeyOf(block_id, payer));
  QUIRE_CHECK(it != other_holds_.end()) << "block " << block_id << ", payer " << payer;
  if (--it->second > 0) return;
  other_holds_.erase(it);
  Leave(block, payer);
}

void TenantCharges::Join(Block& block, Payer payer) {
  Move(block, payer, /*joins=*/true);
  AddBlocks(payer, 1);
}

void TenantCharges::Leave(Block& block, Payer payer) {
  if (NumHolders(block) == 1) {
    block.first = kNamelessPayer;
    block.of = -1;
    SetNumHolders(block, 0);
    AddAlone(payer, -1);
  } else {
    Move(block, payer, /*joins=*/false);
  }
  AddBlocks(payer, -1);
}

// Moves a block to the segment that it belongs to when the payer has joined its holders or left
// them.
void TenantCharges::Move(Block& block, Payer payer, bool joins) {
  base::MutexLock lock(mu_);
  const int32_t num_from = NumHolders(block);
  const int32_t num_holders = num_from + (joins ? 1 : -1);
  const bool as_before = latest_.from == block.of && latest_.num_from == num_from &&
                         latest_.payer == payer && latest_.joins == joins;
  if (!as_before) {
    std::vector<Payer> holders =
        num_from == 1 ? std::vector{block.of} : segments_[block.of].holders;
    if (joins) {
      holders.insert(std::ranges::upper_bound(holders, payer), payer);
    } else {
      holders.erase(std::ranges::lower_bound(holders, payer));
    }
    latest_ = {.from = block.of,
               .num_from = num_from,
               .payer = payer,
               .joins = joins,
               .to = num_holders == 1 ? holders.front() : SegmentOf(holders)};
  }
  const SegmentId from = block.of;
  const bool from_segment = num_from > 1;
  block.of = latest_.to;
  SetNumHolders(block, num_holders);
  if (num_holders == 1) {
    AddAlone(block.of, 1);
  } else {
    ++segments_[block.of].num_blocks;
  }
  if (!from_segment) {
    AddAlone(from, -1);
  } else if (--segments_[from].num_blocks == 0) {
    by_holders_.erase(segments_[from].holders);
    unused_segments_.push_back(from);
    latest_ = {};
  }
}

TenantCharges::SegmentId TenantCharges::SegmentOf(const std::vector<Payer>& holders) {
  if (const auto it = by_holders_.find(holders); it != by_holders_.end()) return it->second;
  if (unused_segments_.empty()) {
    unused_segments_.push_back(static_cast<SegmentId>(segments_.size()));
    segments_.emplace_back();
  }
  const SegmentId id = unused_segments_.back();
  unused_segments_.pop_back();
  segments_[id] = {.holders = holders};
  by_holders_.emplace(holders, id);
  return id;
}

double TenantCharges::Charge(Payer payer) const {
  auto charge = static_cast<double>(accounts_[payer].num_alone.load(std::memory_order_relaxed));
  for (const auto& [holders, id] : by_holders_) {
    if (!std::ranges::binary_search(holders, payer)) continue;
    charge += static_cast<double>(segments_[id].num_blocks) / static_cast<double>(holders.size());
  }
  return charge;
}

double TenantCharges::Charged(std::string_view tenant) const {
  base::MutexLock lock(mu_);
  const auto it = by_name_.find(tenant);
  return it == by_name_.end() ? 0 : Charge(it->second);
}

std::map<std::string, double> TenantCharges::AllCharged() const {
  std::map<std::string, double> charged;
  base::MutexLock lock(mu_);
  for (const Account& account : accounts_) {
    if (!account.used) continue;
    charged[account.tenant] =
        static_cast<double>(account.num_alone.load(std::memory_order_relaxed));
  }
  for (const auto& [holders, id] : by_holders_) {
    const double each =
        static_cast<double>(segments_[id].num_blocks) / static_cast<double>(holders.size());
    for (const Payer holder : holders) charged[accounts_[holder].tenant] += each;
  }
  std::erase_if(charged, [](const auto& one) { return one.second == 0; });
  return charged;
}

double TenantCharges::ChargedFor(std::span<const int32_t> blocks) const {
  double charge = 0;
  for (const int32_t block : blocks) {
    const int32_t num_holders = NumHolders(blocks_[static_cast<size_t>(block)]);
    if (num_holders > 0) charge += 1.0 / num_holders;
  }
  return charge;
}

std::vector<TenantCharges::Segment> TenantCharges::Segments() const {
  std::vector<Segment> segments;
  for (const auto& [holders, id] : by_holders_) segments.push_back(segments_[id]);
  return segments;
}

void TenantCharges::CheckInvariants(std::span<const std::vector<Payer>> holds) const {
  std::map<Payer, int64_t> alone;
  std::map<std::vector<Payer>, int64_t> together;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    std::vector<Payer> holders = holds[i];
    std::ranges::sort(holders);
    for (const Payer payer : holders) {
      const int64_t own = std::ranges::count(holders, payer);
      const auto other = other_holds_.find(KeyOf(static_cast<int32_t>(i), payer));
      const int64_t known = other != other_holds_.end() ? other->second
                            : blocks_[i].first == payer ? blocks_[i].first_holds
                                                        : 0;
      QUIRE_CHECK(known == own) << "block " << i << ", payer " << payer << ": " << known
                                << " holds, " << own << " counted";
    }
    holders.erase(std::unique(holders.begin(), holders.end()), holders.end());
    QUIRE_CHECK(std::ssize(holders) == NumHolders(blocks_[i])) << "block " << i;
    if (holders.size() == 1) ++alone[holders.front()];
    if (holders.size() > 1) ++together[holders];
  }
  for (Payer payer = 0; payer < std::ssize(accounts_); ++payer) {
    QUIRE_CHECK(NumAlone(payer) == alone[payer]) << "payer " << payer << ": " << NumAlone(payer)
                                                 << " blocks, " << alone[payer] << " counted";
  }
  QUIRE_CHECK(by_holders_.size() == together.size())
      << by_holders_.size() << " segments, " << together.size() << " counted";
  for (const auto& [holders, num_blocks] : together) {
    const auto it = by_holders_.find(holders);
    QUIRE_CHECK(it != by_holders_.end() && segments_[it->second].num_blocks == num_blocks)
        << "a segment of " << num_blocks << " blocks and " << holders.size() << " holders";
  }
}

}  // namespace quire::engine
