#pragma once

// Learns when cached blocks are used again, from what is known of the request that used them last.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/huge_allocator.h"
#include "engine/kv/cache_roots.h"
#include "engine/kv/eviction_queue.h"

namespace quire::engine {

// The facts about a request's use of the cache that are known when it starts.
struct CacheUse {
  ChainHash key;           // of the block by which a later request is known to continue this one
  bool has_key = false;    // the prompt has a whole block
  int32_t num_blocks = 0;  // whole blocks of the prompt
  int32_t turn = 0;        // the number of earlier requests that this one continues
  int32_t share = 0;       // 0: little of the prompt was known, 1: less than half, 2: more
  bool is_first = false;   // not a fork, so that the request is counted
};

// The facts about a request that are known when it releases its blocks.
struct CacheUseEnd {
  int64_t num_generated = 0;  // tokens
  bool comes_back = false;    // preempted: the request will start again
};

// Blocks are divided into classes. The class of a block follows from the request that used it last:
// the turn of its conversation, the share of its prompt that was known, and whether its answer was
// short. A block that many requests used has a class of its own, and so have a block that is not
// full and a block of a preempted request.
//
// The rank of a class at some age (time since the last use) is the best ratio, over all horizons,
// of the probability that the block is used again within the horizon to the time for which it is
// expected to be kept: the Gittins index of its place in the cache. Beckmann et al.'s LHD (NSDI
// 2018) evicts by a similar ratio. Blocks with the lowest rank are evicted first. So a block is
// kept that is soon due, and a block is not kept only because it is new.
//
// The probabilities are estimated from counts of reuse times in kNumBuckets buckets, whose borders
// grow by 15 %. A request leaves a ghost when it ends: the hash of a block of its prompt, with time
// and class. The block is one of those that no earlier request had, a quarter of them before the
// last, because the end of a prompt is often replaced in the next turn. A later request whose
// prompt has this block continues the earlier one, and counts for the class of the ghost. Ghosts do
// not depend on what the cache holds, so estimates are not censored by evictions. Blocks of the
// other classes are counted as they return or are evicted. At first all ranks fall with age, so the
// cache begins as LRU.
//
// Also remembers the number of uses of evicted blocks, so that a block that was hot is hot again.
//
// Times are in milliseconds of any clock that does not go back. The cost of Begin is O(blocks of
// the prompt), that of End O(1): kNumBuckets^2 / 2 operations for the ranks of one class. Nothing
// is allocated after construction. The same calls give the same ranks. Not thread-safe.
class ReuseClasses {
 public:
  static constexpr int32_t kNumTurns = 4;   // the last one counts for all later turns
  static constexpr int32_t kNumShares = 3;  // see CacheUse::share
  static constexpr int32_t kNumHot = 8;     // by the logarithm of the number of uses
  static constexpr int32_t kFirstHot = kNumTurns * kNumShares * 2;
  static constexpr int32_t kPartial = kFirstHot + kNumHot;  // a block that is not full
  static constexpr int32_t kComingBack = kPartial + 1;      // of a preempted request
  static constexpr int32_t kDead = kComingBack + 1;         // nobody can use it any more
  static constexpr int32_t kNumClasses = kDead + 1;
  static constexpr int32_t kHotUses = 5;       // a block with so many uses is hot
  static constexpr int32_t kShortAnswer = 30;  // an answer of fewer tokens is short
  static constexpr int32_t kNumBuckets = 56;
  // The blocks of a preempted request are evicted after all others for this many slots of the
  // EvictionQueue, then before all others: the request was cancelled meanwhile.
  static constexpr int32_t kComingBackSlots = 16;

  // `num_blocks`: the number of blocks in the cache, from which the sizes of memories follow.
  explicit ReuseClasses(int32_t num_blocks);

  static int32_t ClassOf(int32_t turn, int32_t share, bool is_short) {
    return (turn * kNumShares + share) * 2 + (is_short ? 1 : 0);
  }
  static int32_t HotClass(int32_t num_uses);
  // True if the class is learned from blocks that return or are evicted, not from ghosts.
  static bool IsCounted(int32_t reuse_class) {
    return reuse_class >= kFirstHot && reuse_class < kComingBack;
  }

  // A request starts. `blocks` are the hashes of its prompt's whole blocks, of which the cache has
  // the first `num_cached`. `num_blocks` counts a last block that is not full, too. A request may
  // start again: it is counted once.
  CacheUse Begin(std::span<const ChainHash> blocks, int64_t num_cached, int64_t num_blocks,
                 int64_t now_ms);
  // The request ends, or is preempted. Returns the class of its blocks.
  int32_t End(const CacheUse& use, const CacheUseEnd& end, int64_t now_ms);

  // A block of a counted class is held again, or is evicted, `age_ms` after its last use.
  void NoteReturn(int32_t reuse_class, int64_t age_ms);
  void NoteEviction(int32_t reuse_class, int64_t age_ms);

  // The number of uses (0 .. 255) of a block that is evicted, and of one that is computed again; 0
  // when it is not known.
  void RememberUses(const ChainHash& block, uint8_t num_uses);
  uint8_t UsesOf(const ChainHash& block) const;
  // Begins to load what these two functions touch.
  void Prefetch(const ChainHash& block) const {
    __builtin_prefetch(&uses_[block.low & (uses_.size() - 1)], 1);
  }

  // For EvictionQueue::Pop.
  const std::vector<EvictionQueue::Ranks>& ranks() const { return ranks_; }

  // Counts of a class: the uses again in a bucket of ages, and how many were still awaited when
  // they reached that bucket.
  int64_t num_returns(int32_t reuse_class, int32_t bucket) const {
    return counts_[reuse_class].returns[bucket];
  }
  int64_t num_awaited(int32_t reuse_class, int32_t bucket) const {
    return counts_[reuse_class].awaited[bucket];
  }
  static int32_t BucketOf(int64_t age_ms);

 private:
  struct Counts {
    std::array<int32_t, kNumBuckets> returns = {};
    std::array<int32_t, kNumBuckets> awaited = {};
  };
  struct Ghost {
    ChainHash block;
    int64_t time_ms = 0;
    int32_t next = -1;  // in the chain of its bucket
    int32_t num_blocks = 0;
    uint8_t reuse_class = 0;
    uint8_t turn = 0;
    bool is_awaited = false;  // no request has continued it
    bool is_linked = false;
  };
  int32_t FindGhost(const ChainHash& block) const;
  void Unlink(int32_t ghost);
  void AddGhost(const CacheUse& use, int32_t reuse_class, int64_t now_ms);
  void LetGhostsAge(int64_t now_ms);
  void CountReturn(int32_t reuse_class, int32_t bucket);
  void Rank(int32_t reuse_class);

  std::vector<Counts> counts_;                      // by class
  std::vector<EvictionQueue::Ranks> ranks_;         // by class
  int32_t next_ranked_ = 0;                         // the class that is ranked next
  base::HugeVector<Ghost> ghosts_;                  // a ring
  base::HugeVector<int32_t> ghost_buckets_;         // the first ghost of each chain; -1: none
  int64_t num_ghosts_ = 0;                          // since the start
  std::array<int64_t, kNumBuckets> num_aged_ = {};  // ghosts that have reached each bucket
  base::HugeVector<uint32_t> uses_;                 // 24 bits of a hash, 8 of a number of uses
};

}  // namespace quire::engine
