#include "engine/kv/reuse_classes.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>

#include "base/check.h"

namespace quire::engine {
namespace {

constexpr int32_t kNumBuckets = ReuseClasses::kNumBuckets;

// Memories are sized for tests with few blocks and for servers with a million.
constexpr uint64_t kFewest = 64;
constexpr uint64_t kMostGhosts = 1 << 16;
constexpr uint64_t kGhostsPerBlock = 4;
constexpr uint64_t kMostUses = 1 << 20;
constexpr uint64_t kUsesPerBlock = 8;

// When a class has been counted so often, its counts are halved, so that it forgets slowly.
constexpr int32_t kMostCounted = 1 << 15;

// Before anything is known, each class has these counts: kPriorCount blocks, of which half return.
// Their rate of return falls like 1 / (kPriorMs + age).
constexpr double kPriorCount = 4.0;
constexpr double kPriorMs = 200e3;

// Measured with quire-sim on Mooncake's conversation trace at 1, 2, 4, 8 and 16M tokens: hit rates
// of .104, .150, .213, .284, .340 with 0, and .109, .157, .215, .287, .343 with 2
// (docs/simulator.md).
constexpr int32_t kSmoothing = 2;

// The first age of each bucket, in milliseconds.
constexpr std::array<int64_t, kNumBuckets + 1> kEdges = [] {
  std::array<int64_t, kNumBuckets + 1> edges = {};
  int64_t edge = 1000;
  for (int32_t k = 1; k <= kNumBuckets; ++k) {
    edges[k] = edge;
    edge = edge * 23 / 20;
  }
  return edges;
}();

}  // namespace

ReuseClasses::ReuseClasses(int32_t num_blocks) : counts_(kNumClasses), ranks_(kNumClasses) {
  const auto size = [&](uint64_t per_block, uint64_t most) {
    return std::bit_ceil(std::clamp(per_block * static_cast<uint64_t>(num_blocks), kFewest, most));
  };
  ghosts_.resize(size(kGhostsPerBlock, kMostGhosts));
  ghost_buckets_.assign(2 * ghosts_.size(), -1);
  uses_.assign(size(kUsesPerBlock, kMostUses), 0);
  for (int32_t c = 0; c < kComingBack; ++c) Rank(c);
  ranks_[kDead].fill(-2.0f);
  ranks_[kComingBack].fill(-1.0f);
  std::fill_n(ranks_[kComingBack].begin(), kComingBackSlots,
              std::numeric_limits<float>::infinity());
}

int32_t ReuseClasses::HotClass(int32_t num_uses) {
  const auto times = static_cast<uint32_t>(num_uses / kHotUses);
  return kFirstHot + std::min(kNumHot, static_cast<int32_t>(std::bit_width(times))) - 1;
}

int32_t ReuseClasses::BucketOf(int64_t age_ms) {
  const auto above = std::upper_bound(kEdges.begin() + 1, kEdges.end() - 1, age_ms);
  return static_cast<int32_t>(above - kEdges.begin()) - 1;
}

int32_t ReuseClasses::FindGhost(const ChainHash& block) const {
  int32_t i = ghost_buckets_[block.low & (ghost_buckets_.size() - 1)];
  while (i >= 0 && !(ghosts_[i].block == block)) i = ghosts_[i].next;
  return i;
}

void ReuseClasses::Unlink(int32_t ghost) {
  int32_t* link = &ghost_buckets_[ghosts_[ghost].block.low & (ghost_buckets_.size() - 1)];
  while (*link != ghost) link = &ghosts_[*link].next;
  *link = ghosts_[ghost].next;
  ghosts_[ghost].is_linked = false;
}

void ReuseClasses::AddGhost(const CacheUse& use, int32_t reuse_class, int64_t now_ms) {
  if (const int32_t known = FindGhost(use.key); known >= 0) Unlink(known);
  const auto i = static_cast<int32_t>(num_ghosts_++ & (ghosts_.size() - 1));
  if (ghosts_[i].is_linked) Unlink(i);
  int32_t& first = ghost_buckets_[use.key.low & (ghost_buckets_.size() - 1)];
  ghosts_[i] = {.block = use.key,
                .time_ms = now_ms,
                .next = first,
                .num_blocks = use.num_blocks,
                .reuse_class = static_cast<uint8_t>(reuse_class),
                .turn = static_cast<uint8_t>(std::min(use.turn, 255)),
                .is_awaited = true,
                .is_linked = true};
  first = i;
}

void ReuseClasses::LetGhostsAge(int64_t now_ms) {
  for (int32_t k = 0; k < kNumBuckets; ++k) {
    int64_t& i = num_aged_[k];
    i = std::max(i, num_ghosts_ - static_cast<int64_t>(ghosts_.size()));
    for (; i < num_ghosts_; ++i) {
      const Ghost& ghost = ghosts_[i & (ghosts_.size() - 1)];
      if (ghost.time_ms + kEdges[k] > now_ms) break;
      counts_[ghost.reuse_class].awaited[k] += ghost.is_awaited ? 1 : 0;
    }
  }
}

void ReuseClasses::CountReturn(int32_t reuse_class, int32_t bucket) {
  Counts& counts = counts_[reuse_class];
  ++counts.returns[bucket];
  if (counts.awaited[0] < kMostCounted) return;
  for (int32_t k = 0; k < kNumBuckets; ++k) {
    counts.returns[k] /= 2;
    counts.awaited[k] /= 2;
  }
}

CacheUse ReuseClasses::Begin(std::span<const ChainHash> blocks, int64_t num_cached,
                             int64_t num_blocks, int64_t now_ms) {
  LetGhostsAge(now_ms);
  const auto num_whole = std::ssize(blocks);
  CacheUse use{.num_blocks = static_cast<int32_t>(num_whole), .is_first = true};
  int64_t num_known = num_cached;
  for (int64_t i = num_whole - 1; i >= 0; --i) {
    const int32_t found = FindGhost(blocks[i]);
    if (found < 0) continue;
    Ghost& ghost = ghosts_[found];
    if (ghost.is_awaited) CountReturn(ghost.reuse_class, BucketOf(now_ms - ghost.time_ms));
    ghost.is_awaited = false;
    use.turn = ghost.turn + 1;
    num_known = std::max({num_known, i + 1, std::min<int64_t>(ghost.num_blocks, num_whole)});
    break;
  }
  if (num_whole > 0) {
    use.key = blocks[num_whole - 1 - (num_whole - num_known) / 4];
    use.has_key = true;
  }
  use.share = num_known * 8 <= num_blocks ? 0 : num_known * 2 < num_blocks ? 1 : 2;
  return use;
}

int32_t ReuseClasses::End(const CacheUse& use, const CacheUseEnd& end, int64_t now_ms) {
  if (end.comes_back) return kComingBack;
  const int32_t reuse_class =
      ClassOf(std::min(use.turn, kNumTurns - 1), use.share, end.num_generated < kShortAnswer);
  if (use.is_first) {
    LetGhostsAge(now_ms);
    if (use.has_key) AddGhost(use, reuse_class, now_ms);
    Rank(next_ranked_);
    next_ranked_ = (next_ranked_ + 1) % kComingBack;
  }
  return reuse_class;
}

void ReuseClasses::NoteReturn(int32_t reuse_class, int64_t age_ms) {
  const int32_t bucket = BucketOf(age_ms);
  for (int32_t k = 0; k <= bucket; ++k) ++counts_[reuse_class].awaited[k];
  CountReturn(reuse_class, bucket);
}

void ReuseClasses::NoteEviction(int32_t reuse_class, int64_t age_ms) {
  const int32_t bucket = BucketOf(age_ms);
  for (int32_t k = 0; k <= bucket; ++k) ++counts_[reuse_class].awaited[k];
}

void ReuseClasses::RememberUses(const ChainHash& block, uint8_t num_uses) {
  uses_[block.low & (uses_.size() - 1)] =
      static_cast<uint32_t>(block.high) << 8 | uint32_t{num_uses};
}

uint8_t ReuseClasses::UsesOf(const ChainHash& block) const {
  const uint32_t known = uses_[block.low & (uses_.size() - 1)];
  return known >> 8 == (static_cast<uint32_t>(block.high) & 0xffffff) ? known & 0xff : 0;
}

void ReuseClasses::Rank(int32_t reuse_class) {
  const Counts& counts = counts_[reuse_class];
  std::array<double, kNumBuckets>
      hazard;  // the probability of a return in a bucket that is reached
  for (int32_t k = 0; k < kNumBuckets; ++k) {
    const auto width = static_cast<double>(kEdges[k + 1] - kEdges[k]);
    const double prior = 0.5 * width / (kPriorMs + static_cast<double>(kEdges[k + 1]));
    // Neighbours within kSmoothing buckets count with weights that fall with their distance.
    // Without this, the best horizon would often be one that luck made best.
    double returns = 0.0, awaited = 0.0, weights = 0.0;
    for (int32_t near = std::max(0, k - kSmoothing);
         near <= std::min(kNumBuckets - 1, k + kSmoothing); ++near) {
      const double weight = 1 + kSmoothing - std::abs(near - k);
      returns += weight * counts.returns[near];
      awaited += weight * counts.awaited[near];
      weights += weight;
    }
    hazard[k] = std::min(
        1.0, (returns / weights + kPriorCount * prior) / (awaited / weights + kPriorCount));
  }
  std::array<float, kNumBuckets> index;
  for (int32_t age = 0; age < kNumBuckets; ++age) {
    double reached = 1.0, returned = 0.0, kept_ms = 0.0, best = 0.0;
    for (int32_t k = age; k < kNumBuckets; ++k) {
      const double returns = reached * hazard[k];
      returned += returns;
      kept_ms += (reached - 0.5 * returns) * static_cast<double>(kEdges[k + 1] - kEdges[k]);
      reached -= returns;
      if (returned > best * kept_ms) best = returned / kept_ms;
    }
    index[age] = static_cast<float>(best);
  }
  for (int32_t age = 0; age < EvictionQueue::kNumAges; ++age) {
    ranks_[reuse_class][age] =
        index[BucketOf(age * EvictionQueue::kSlotMs + EvictionQueue::kSlotMs / 2)];
  }
}

}  // namespace quire::engine
