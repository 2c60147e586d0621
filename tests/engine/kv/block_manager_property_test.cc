// Compares BlockManager with a naive model on random sequences. A cache hit is never longer than
// the longest prefix shared with a committed sequence. While nothing is evicted, RunWorld also
// checks that the hit is not too short. The invariants hold after every operation.

#include <algorithm>
#include <map>
#include <random>
#include <rapidcheck.h>
#include <set>
#include <vector>

#include "gtest/gtest.h"

#include "engine/kv/block_manager.h"

namespace quire::engine {
namespace {

using Tokens = std::vector<int32_t>;

int64_t CommonPrefix(const Tokens& a, const Tokens& b) {
  const size_t n = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin();
}

using Known = std::map<SequenceId, Tokens>;

struct Live {
  Tokens tokens;
  int64_t num_committed = 0;
  std::string root;
  CacheAccess access;
};

struct Totals {
  int64_t hits = 0;
  int64_t partial = 0;  // hits that had to be exact and to end inside a block
  int64_t evictions = 0;
  int64_t copies = 0;
  int64_t shifts = 0;
};

// Runs 30 steps. In each step some sequences start, and some grow by a few tokens. Then the grown
// sequences commit, and some sequences fork or end.
void RunWorld(uint32_t seed, int32_t num_blocks, bool tiny, Totals& totals) {
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const int32_t block_size = pick(1, 5);
  BlockManager blocks({.num_blocks = num_blocks, .block_size = block_size});
  std::map<SequenceId, Live> live;
  // For each root: the tokens that each sequence has committed. A cache hit must not be longer than
  // the longest common prefix with a sequence in `may_hold`. While nothing is evicted, the hit must
  // be at least as long as the longest common prefix with a sequence in `must_hold`. `must_hold`
  // leaves out a sequence that may not read the cache: once it computes a block that the cache
  // already lists, its later blocks are not listed.
  std::map<std::string, Known> may_hold;
  std::map<std::string, Known> must_hold;
  SequenceId next_id = 1;
  std::vector<kernels::BlockCopy> copies;
  std::vector<kernels::KeyShift> shifts;
  for (int64_t step = 1; step <= 30; ++step) {
    blocks.BeginStep(step);
    std::map<SequenceId, int64_t> grown;
    for (int i = pick(0, 3); i > 0 && live.size() < 6; --i) {
      Live sequence;
      sequence.root = pick(0, 3) == 0 ? "b" : "a";
      const Known& known = may_hold[sequence.root];
      if (!known.empty() && pick(0, 3) > 0) {
        const Tokens& other =
            std::next(known.begin(), pick(0, static_cast<int>(known.size()) - 1))->second;
        sequence.tokens.assign(other.begin(),
                               other.begin() + pick(0, static_cast<int>(other.size())));
      }
      for (int k = pick(1, 9); k > 0; --k) sequence.tokens.push_back(pick(0, tiny ? 1 : 100000));
      sequence.access = {.read = pick(0, 9) > 0, .write = pick(0, 9) > 0};
      const SequenceId id = next_id++;
      const int64_t cached =
          blocks.StartSequence(id, sequence.root, sequence.tokens, sequence.access).num_cached;
      const auto size = static_cast<int64_t>(sequence.tokens.size());
      const auto longest = [&](const Known& others) {
        int64_t n = 0;
        for (const auto& [other_id, other] : others) {
          n = std::max(n, CommonPrefix(sequence.tokens, other));
        }
        return sequence.access.read ? std::min(n, size - 1) : 0;
      };
      RC_ASSERT(cached <= longest(known));
      if (!tiny && blocks.stats().num_evictions == 0) {
        const int64_t wanted = longest(must_hold[sequence.root]);
        // After the last whole block of the match, the cache looks for the block that continues the
        // match furthest. It compares at most kMaxCompared of the blocks that begin with the next
        // token. If there are more, it may miss the best block.
        const int64_t whole = wanted / block_size * block_size;
        const auto compared = std::ranges::count_if(known, [&](const auto& other) {
          return CommonPrefix(sequence.tokens, other.second) > whole;
        });
        RC_ASSERT(cached >= (compared <= PrefixCache::kMaxCompared ? wanted : whole));
        totals.partial += compared <= PrefixCache::kMaxCompared && wanted > whole ? 1 : 0;
      }
      totals.hits += cached;
      blocks.CheckInvariants();
      const int64_t before = blocks.num_available();
      const int64_t needed = blocks.NumBlocksToGrow(id, size);
      if (pick(0, 7) == 0 || needed > before) {
        RC_ASSERT(needed <= before || !blocks.TryGrow(id, size));
        blocks.Release(id);
        blocks.CheckInvariants();
        continue;
      }
      RC_ASSERT(blocks.TryGrow(id, size));
      RC_ASSERT(blocks.num_available() == before - needed);
      sequence.num_committed = cached;
      grown[id] = size;
      live[id] = std::move(sequence);
    }
    for (auto& [id, sequence] : live) {
      if (grown.contains(id) || pick(0, 1) == 0) continue;
      TableShift shift;
      const auto table_blocks = static_cast<int>(blocks.Table(id).size());
      if (table_blocks > 1 && sequence.num_committed == table_blocks * block_size &&
          pick(0, 2) == 0) {
        const int first = pick(0, table_blocks - 1);
        shift = {.first = first * block_size, .count = pick(1, table_blocks - first) * block_size};
      }
      for (int k = pick(1, 3); k > 0; --k) sequence.tokens.push_back(pick(0, tiny ? 1 : 100000));
      const auto size = static_cast<int64_t>(sequence.tokens.size());
      const int64_t needed = blocks.NumBlocksToGrow(id, size - shift.count, shift);
      const int64_t before = blocks.num_available();
      const Tokens table(blocks.Table(id).begin(), blocks.Table(id).end());
      if (blocks.TryGrow(id, size - shift.count, shift)) {
        grown[id] = size - shift.count;
        RC_ASSERT(blocks.num_available() == before - needed);
        if (shift.count > 0) {
          const auto left = sequence.tokens.begin() + shift.first;
          sequence.tokens.erase(left, left + shift.count);
          sequence.num_committed -= shift.count;
          sequence.access.write = false;
          ++totals.shifts;
        }
      } else {
        RC_ASSERT(needed > before);
        RC_ASSERT(std::ranges::equal(table, blocks.Table(id)));
        sequence.tokens.resize(sequence.num_committed);
      }
      blocks.CheckInvariants();
    }
    copies.clear();
    shifts.clear();
    blocks.EndStep(true, &copies, &shifts);
    std::set<int32_t> sources;
    for (const kernels::BlockCopy& copy : copies) sources.insert(copy.source);
    for (const kernels::BlockCopy& copy : copies) RC_ASSERT(!sources.contains(copy.destination));

    const auto end_some = [&](int one_in) {
      for (auto it = live.begin(); it != live.end();) {
        if (pick(1, one_in) > 1) {
          ++it;
          continue;
        }
        blocks.Release(it->first);
        blocks.CheckInvariants();
        it = live.erase(it);
      }
    };
    end_some(12);  // while the step is in flight
    blocks.CompleteStep(step);
    blocks.CheckInvariants();
    std::vector<SequenceId> forkable;
    for (auto& [id, sequence] : live) {
      if (!grown.contains(id)) continue;
      blocks.Commit(id, sequence.tokens, grown.at(id));
      sequence.num_committed = grown.at(id);
      blocks.CheckInvariants();
      if (sequence.access.write) {
        const Tokens tokens(sequence.tokens.begin(),
                            sequence.tokens.begin() + sequence.num_committed);
        may_hold[sequence.root][id] = tokens;
        if (sequence.access.read) must_hold[sequence.root][id] = tokens;
      }
      forkable.push_back(id);
    }
    for (const SequenceId id : forkable) {
      if (pick(0, 4) > 0) continue;
      const SequenceId child = next_id++;
      RC_ASSERT(blocks.TryFork(id, child));
      live[child] = live.at(id);
      blocks.CheckInvariants();
    }
    end_some(5);
  }
  for (const auto& [id, sequence] : live) blocks.Release(id);
  const BlockStats stats = blocks.stats();
  RC_ASSERT(stats.num_free + stats.num_cached == stats.num_total);
  totals.evictions += stats.num_evictions;
  totals.copies += stats.num_copies;
  blocks.CheckInvariants();
}

TEST(BlockManagerPropertyTest, FindsTheLongestCommonPrefix) {
  Totals totals;
  EXPECT_TRUE(rc::check([&](uint32_t seed) { RunWorld(seed, 600, false, totals); }));
  EXPECT_GT(totals.partial, 100);
}

TEST(BlockManagerPropertyTest, HoldsItsInvariantsWhenBlocksRunOut) {
  Totals totals;
  EXPECT_TRUE(
      rc::check([&](uint32_t seed) { RunWorld(seed, *rc::gen::inRange(4, 40), true, totals); }));
  EXPECT_GT(totals.hits, 0);
  EXPECT_GT(totals.evictions, 0);
  EXPECT_GT(totals.copies, 0);
  EXPECT_GT(totals.shifts, 0);
}

}  // namespace
}  // namespace quire::engine
