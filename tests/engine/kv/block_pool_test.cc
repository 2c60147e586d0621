#include "engine/kv/block_pool.h"

#include <algorithm>
#include <cstdint>
#include <rapidcheck.h>
#include <vector>

#include "gtest/gtest.h"

#include "tests/testing/pick.h"

namespace quire::engine {
namespace {

using State = BlockPool::State;
using testing::Pick;

TEST(BlockPoolTest, HasACellForEachBlockUpToABound) {
  EXPECT_EQ(BlockPool(1).cells().size(), 1u);
  EXPECT_EQ(BlockPool(kMostMapCells).cells().size(), static_cast<size_t>(kMostMapCells));
  const BlockPool one_more(kMostMapCells + 1);
  ASSERT_EQ(one_more.cells().size(), static_cast<size_t>(kMostMapCells) / 2 + 1);
  EXPECT_EQ(one_more.cells().front().num_blocks, 2);
  EXPECT_EQ(one_more.cells().back().num_blocks, 1);
}

TEST(BlockPoolTest, TakesTheLowestIdsFirstAndThenWhatWasFreedLast) {
  BlockPool pool(3);
  for (const int32_t block : {0, 1, 2}) EXPECT_EQ(pool.Take(), block);
  EXPECT_EQ(pool.Take(), -1);
  EXPECT_TRUE(pool.DropTableRef(0));
  EXPECT_TRUE(pool.DropTableRef(2));
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.Take(), 2);
  EXPECT_EQ(pool.Take(), 0);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, APinIsNeitherATablesHoldNorAHandles) {
  BlockPool pool(2);
  pool.Take();
  pool.SetListed(0, true);
  EXPECT_FALSE(pool.AddPinRef(0));
  EXPECT_EQ(pool.num_pinned(), 1);
  EXPECT_FALSE(pool.DropTableRef(0));
  EXPECT_EQ(pool.num_held_by_handles_only(), 0) << "no step gives it back";
  EXPECT_EQ(pool.num_held(), 1);
  EXPECT_FALSE(pool.AddHandleRef(0));
  EXPECT_EQ(pool.num_held_by_handles_only(), 0);
  pool.CheckInvariants();
  EXPECT_FALSE(pool.DropPinRef(0));
  EXPECT_EQ(pool.num_held_by_handles_only(), 1);
  EXPECT_TRUE(pool.DropHandleRef(0));
  EXPECT_EQ(pool.state(0), State::kCached);
  EXPECT_TRUE(pool.AddPinRef(0)) << "it was cached";
  EXPECT_EQ(pool.num_pinned(), 1);
  EXPECT_TRUE(pool.DropPinRef(0));
  EXPECT_EQ(pool.num_pinned(), 0);
  EXPECT_EQ(pool.num_cached(), 1);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, TheLastOfItsHoldersFreesIt) {
  BlockPool pool(1);
  pool.Take();
  EXPECT_FALSE(pool.AddTableRef(0));
  EXPECT_FALSE(pool.AddHandleRef(0));
  EXPECT_FALSE(pool.DropTableRef(0));
  EXPECT_EQ(pool.num_held_by_handles_only(), 0);
  EXPECT_FALSE(pool.DropTableRef(0));
  EXPECT_EQ(pool.num_held_by_handles_only(), 1);
  EXPECT_EQ(pool.state(0), State::kHeld);
  EXPECT_TRUE(pool.DropHandleRef(0));
  EXPECT_EQ(pool.state(0), State::kFree);
  EXPECT_EQ(pool.num_held_by_handles_only(), 0);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, AListedBlockStaysCachedUntilItIsHeldAgainOrEvicted) {
  BlockPool pool(2);
  pool.Take();
  pool.SetListed(0, true);
  EXPECT_TRUE(pool.DropTableRef(0));
  EXPECT_EQ(pool.state(0), State::kCached);
  EXPECT_EQ(pool.num_cached(), 1);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_TRUE(pool.AddHandleRef(0)) << "it was cached until now";
  EXPECT_EQ(pool.num_cached(), 0);
  EXPECT_TRUE(pool.DropHandleRef(0));
  pool.TakeEvicted(0);
  EXPECT_EQ(pool.state(0), State::kHeld);
  EXPECT_FALSE(pool.listed(0));
  EXPECT_EQ(pool.table_refs(0), 1);
  EXPECT_TRUE(pool.DropTableRef(0));
  EXPECT_EQ(pool.state(0), State::kFree);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, ATablesHoldBecomesAHandles) {
  BlockPool pool(1);
  pool.Take();
  pool.TableRefToHandle(0);
  EXPECT_EQ(pool.table_refs(0), 0);
  EXPECT_EQ(pool.handle_refs(0), 1);
  EXPECT_EQ(pool.num_held_by_handles_only(), 1);
  EXPECT_FALSE(pool.AddTableRef(0));
  EXPECT_EQ(pool.num_held_by_handles_only(), 0);
  pool.CheckInvariants();
}

// A naive pool that follows the definition in the header of BlockPool. It keeps the holders of each
// block, and the free blocks in the order of their use. It counts by looking at every block.
struct NaivePool {
  struct Block {
    int32_t tables = 0;
    int32_t handles = 0;
    bool listed = false;
  };
  explicit NaivePool(int32_t num_blocks) : blocks(num_blocks) {
    for (int32_t i = num_blocks; i > 0; --i) free.push_back(i - 1);
  }

  State state(int32_t block) const {
    if (std::ranges::find(free, block) != free.end()) return State::kFree;
    return blocks[block].tables + blocks[block].handles > 0 ? State::kHeld : State::kCached;
  }
  int32_t Count(State wanted) const {
    int32_t count = 0;
    for (size_t i = 0; i < blocks.size(); ++i) count += state(static_cast<int32_t>(i)) == wanted;
    return count;
  }
  int32_t Take() {
    if (free.empty()) return -1;
    const int32_t block = free.back();
    free.pop_back();
    blocks[block] = {.tables = 1};
    return block;
  }
  bool Drop(int32_t block, int32_t& refs) {
    --refs;
    if (blocks[block].tables + blocks[block].handles > 0) return false;
    if (!blocks[block].listed) free.push_back(block);
    return true;
  }

  std::vector<Block> blocks;
  std::vector<int32_t> free;  // the block to take next is the last one
};

void ExpectEqual(const BlockPool& pool, const NaivePool& naive) {
  pool.CheckInvariants();
  int32_t handles_only = 0;
  for (int32_t i = 0; i < pool.num_blocks(); ++i) {
    const NaivePool::Block& block = naive.blocks[i];
    RC_ASSERT(pool.state(i) == naive.state(i));
    RC_ASSERT(pool.table_refs(i) == block.tables);
    RC_ASSERT(pool.handle_refs(i) == block.handles);
    RC_ASSERT(pool.listed(i) == block.listed);
    handles_only += block.tables == 0 && block.handles > 0 ? 1 : 0;
  }
  RC_ASSERT(pool.num_free() == naive.Count(State::kFree));
  RC_ASSERT(pool.num_cached() == naive.Count(State::kCached));
  RC_ASSERT(pool.num_held() == naive.Count(State::kHeld));
  RC_ASSERT(pool.num_held_by_handles_only() == handles_only);
}

TEST(BlockPoolPropertyTest, CountsWhatIsThere) {
  int64_t num_full = 0, num_evicted = 0, num_shared_again = 0;
  EXPECT_TRUE(rc::check([&] {
    constexpr int32_t kNumBlocks = 5;
    BlockPool pool(kNumBlocks);
    NaivePool naive(kNumBlocks);
    for (int i = Pick(0, 400); i > 0; --i) {
      const int operation = Pick(0, 6);
      const int32_t id = Pick(0, kNumBlocks - 1);
      NaivePool::Block& block = naive.blocks[id];
      const State state = naive.state(id);
      switch (operation) {
        case 0:
          num_full += naive.free.empty() ? 1 : 0;
          RC_ASSERT(pool.Take() == naive.Take());
          break;
        case 1:
          if (state != State::kCached) continue;
          ++num_evicted;
          pool.TakeEvicted(id);
          block = {.tables = 1};
          break;
        case 2: {
          if (state == State::kFree) continue;
          const bool was_cached = state == State::kCached;
          num_shared_again += was_cached ? 1 : 0;
          const bool table = Pick(0, 1) == 0;
          RC_ASSERT((table ? pool.AddTableRef(id) : pool.AddHandleRef(id)) == was_cached);
          ++(table ? block.tables : block.handles);
          break;
        }
        case 3:
          if (block.tables == 0) continue;
          RC_ASSERT(pool.DropTableRef(id) == naive.Drop(id, block.tables));
          break;
        case 4:
          if (block.handles == 0) continue;
          RC_ASSERT(pool.DropHandleRef(id) == naive.Drop(id, block.handles));
          break;
        case 5:
          if (block.tables == 0) continue;
          pool.TableRefToHandle(id);
          --block.tables;
          ++block.handles;
          break;
        case 6:
          if (state != State::kHeld) continue;
          block.listed = !block.listed;
          pool.SetListed(id, block.listed);
          break;
      }
      ExpectEqual(pool, naive);
    }
  }));
  EXPECT_GT(num_full, 20);
  EXPECT_GT(num_evicted, 20);
  EXPECT_GT(num_shared_again, 20);
}

}  // namespace
}  // namespace quire::engine
