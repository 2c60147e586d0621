#pragma once

// Counts what each tenant is charged for the blocks that it holds.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "base/huge_allocator.h"
#include "base/mutex.h"
#include "base/strings.h"

namespace quire::engine {

// A held block costs 1, divided equally by the tenants that hold it, through tables, pins or
// handles. Several sequences and prefixes of one tenant count once. So the charges of all tenants
// add up to the number of held blocks. Cached and free blocks cost nothing.
//
// Nearly all blocks are held by one tenant, whose counter knows them. Only the blocks of a named
// prefix may be held by several. Such blocks with the same holders are one *segment*, so that a
// tenant that begins or ends to use a prefix writes nothing for the others:
//
//   charge(t) = blocks that t alone holds + sum over the segments of t of blocks / holders
//
// Hold and Drop are O(1), apart from the first block of each segment that changes; a charge is
// O(segments). Only the step thread may call what is not const. Other threads may call Charged.
class TenantCharges {
 public:
  // Identifies a tenant that holds blocks or is known to the scheduler. kNamelessPayer is always
  // that of the tenant with the empty name.
  using Payer = int32_t;
  static constexpr Payer kNamelessPayer = 0;
  // Returns true if the charge is of more blocks than `most`. Charges are sums of fractions, so
  // they may differ from whole numbers by their rounding.
  static bool Exceeds(double charge, int32_t most) { return charge > most + 1e-6; }

  explicit TenantCharges(int32_t num_blocks);

  // Returns the tenant's payer, which stays valid until Release, and as long as it holds blocks.
  Payer Acquire(std::string_view tenant);
  void Release(Payer payer);

  // Adds one hold of the block by the payer, or takes one away.
  void Hold(int32_t block, Payer payer);
  void Drop(int32_t block, Payer payer);

  // Begins to load what Hold and Drop of the block touch.
  void Prefetch(int32_t block) const { __builtin_prefetch(&blocks_[block], 1); }

  // Returns the charge, in blocks.
  double Charge(Payer payer) const;
  // Returns the charge of the tenant with this name, and 0 if it holds nothing. May be called on
  // any thread. While a step changes the holders of a prefix, the result may be that of a moment
  // between.
  double Charged(std::string_view tenant) const;
  // Returns the charges of all tenants that hold blocks, by name. May be called on any thread.
  std::map<std::string, double> AllCharged() const;
  // Returns the part of its charge that a tenant which holds all these blocks has for them. May be
  // called on any thread, as Charged.
  double ChargedFor(std::span<const int32_t> blocks) const;

  // The blocks that a tenant holds together with others, for tests.
  struct Segment {
    std::vector<Payer> holders;  // in ascending order; at least two
    int64_t num_blocks = 0;
  };
  std::vector<Segment> Segments() const;
  int64_t NumAlone(Payer payer) const { return accounts_[payer].num_alone.load(); }

  // Aborts unless holds[b] lists the holders of block b, each once for each of its holds.
  void CheckInvariants(std::span<const std::vector<Payer>> holds) const;

 private:
  struct Account {
    std::string tenant;
    std::atomic<int64_t> num_alone = 0;
    int64_t num_refs = 0;    // of Acquire
    int64_t num_blocks = 0;  // that it holds, alone or with others
    bool used = false;
  };
  struct Block {
    Payer first = kNamelessPayer;  // its holds are counted here, those of others in other_holds_
    int32_t first_holds = 0;
    std::atomic<int32_t> num_holders = 0;  // written by the step thread alone
    int32_t of = -1;                       // with one holder: the holder; with more: the segment
  };
  using SegmentId = int32_t;

  static uint64_t KeyOf(int32_t block, Payer payer) {
    return uint64_t{static_cast<uint32_t>(block)} << 32 | static_cast<uint32_t>(payer);
  }
  void AddAlone(Payer payer, int64_t num);
  void AddBlocks(Payer payer, int64_t num);
  static int32_t NumHolders(const Block& block) {
    return block.num_holders.load(std::memory_order_relaxed);
  }
  static void SetNumHolders(Block& block, int32_t num_holders) {
    block.num_holders.store(num_holders, std::memory_order_relaxed);
  }
  void Join(Block& block, Payer payer);
  void Leave(Block& block, Payer payer);
  void Move(Block& block, Payer payer, bool joins);
  SegmentId SegmentOf(const std::vector<Payer>& holders);
  void Forget(Payer payer);

  base::HugeVector<Block> blocks_;
  absl::flat_hash_map<uint64_t, int32_t> other_holds_;  // by block and payer
  // The step thread writes the members below under mu_, and reads them without.
  mutable base::Mutex mu_;
  std::deque<Account> accounts_;
  std::vector<Payer> unused_accounts_;
  std::unordered_map<std::string, Payer, base::StringHash, std::equal_to<>> by_name_;
  std::vector<Segment> segments_;
  std::vector<SegmentId> unused_segments_;
  std::map<std::vector<Payer>, SegmentId> by_holders_;  // those with blocks
  // The latest change of holders: consecutive blocks of a prefix mostly change alike.
  struct Change {
    int32_t from = -1;
    int32_t num_from = 0;  // holders
    Payer payer = -1;
    bool joins = false;
    SegmentId to = -1;
  };
  Change latest_;
};

}  // namespace quire::engine
