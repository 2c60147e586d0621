// Tests the picture of the cache: its cells, its tree and who runs on pins.

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "engine/kv/block_manager.h"

namespace quire::engine {
namespace {

using Ids = std::vector<int32_t>;

constexpr int32_t kSize = 4;

Ids Range(int32_t n, int32_t first) {
  Ids ids(n);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

Ids Both(Ids ids, const Ids& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

std::string KeyOf(const std::string& tenant, const std::string& part = "",
                  const std::string& salt = "", PinId on = kNoPin) {
  return absl::StrCat("0:", CacheRootKey("model", "", tenant, part, salt, on));
}

class CacheMapTest : public ::testing::Test {
 protected:
  void Make(int32_t num_blocks) {
    blocks_ = std::make_unique<BlockManager>(
        BlockManagerConfig{.num_blocks = num_blocks, .block_size = kSize});
  }
  // Computes the tokens, and keeps them unless `ends`.
  void Run(SequenceId id, const std::string& key, const Ids& tokens, PinId on = kNoPin,
           bool ends = false) {
    blocks_->BeginStep(++step_);
    blocks_->StartSequence(id, key, tokens, {}, /*allow_copy=*/true, on);
    ASSERT_TRUE(blocks_->TryGrow(id, std::ssize(tokens)));
    blocks_->PrepareWrite(id, std::ssize(tokens));
    std::vector<kernels::BlockCopy> copies;
    std::vector<kernels::KeyShift> shifts;
    blocks_->EndStep(true, &copies, &shifts);
    blocks_->CompleteStep(step_);
    blocks_->Commit(id, tokens, std::ssize(tokens));
    if (ends) blocks_->Release(id);
    if (blocks_->stats().num_total <= 64) blocks_->CheckInvariants();
  }
  CacheMap Draw(int32_t per_step = 256) {
    blocks_->BeginMap();
    for (int i = 0; i < 1'000'000; ++i) {
      if (const auto map = blocks_->ContinueMap(per_step)) return *map;
    }
    ADD_FAILURE() << "the walk does not end";
    return {};
  }
  static CacheMapCell Sum(const CacheMap& map) {
    CacheMapCell sum;
    for (const CacheMapCell& cell : map.cells) sum += cell;
    return sum;
  }

  std::unique_ptr<BlockManager> blocks_;
  int64_t step_ = 0;
};

TEST_F(CacheMapTest, TheTreeShowsWhoSharesWhat) {
  Make(64);
  const Ids prefix = Range(8, 0);
  Run(1, KeyOf("acme"), prefix);
  ASSERT_TRUE(blocks_->TryPin(7, KeyOf("acme"), prefix));
  blocks_->Release(1);
  Run(2, KeyOf("acme", "", "secret", 7), Both(prefix, Range(4, 100)), 7);
  Run(3, KeyOf("beta", "crew", "", 7), Both(prefix, Range(8, 200)), 7);
  Run(4, KeyOf("acme"), Both(prefix, Range(4, 300)), kNoPin, /*ends=*/true);
  for (const int32_t per_step : {1, 3, 256}) {
    const CacheMap map = Draw(per_step);
    ASSERT_EQ(map.nodes.size(), 4u);
    const CacheMapNode& first = map.nodes[0];
    EXPECT_EQ(first.parent, -1);
    EXPECT_EQ(first.tenant, "acme");
    EXPECT_EQ(first.num_blocks, 2);
    EXPECT_EQ(first.num_tokens, 8);
    EXPECT_EQ(first.num_pinned, 2);
    EXPECT_EQ(first.num_sequences, 2);
    EXPECT_EQ(first.pins, std::vector<uint64_t>{7});
    EXPECT_EQ(first.num_hidden, 0);
    EXPECT_EQ(map.nodes[1].tenant, "acme");
    EXPECT_EQ(map.nodes[1].num_held, 0) << "cached";
    EXPECT_EQ(map.nodes[1].num_pinned, 0);
    for (const CacheMapNode& node : map.nodes) {
      if (&node != &first) EXPECT_EQ(node.parent, 0);
    }
    const auto beta = std::ranges::find(map.nodes, "beta", &CacheMapNode::tenant);
    ASSERT_NE(beta, map.nodes.end());
    EXPECT_EQ(beta->part, "crew");
    EXPECT_EQ(beta->num_blocks, 2);
    EXPECT_EQ(beta->num_held, 2);
    EXPECT_EQ(beta->num_sequences, 1);
    ASSERT_EQ(map.uses.size(), 2u);
    EXPECT_EQ(map.uses[1].tenant, "beta");
    EXPECT_EQ(map.uses[1].num_sequences, 1);
    const CacheMapCell sum = Sum(map);
    EXPECT_EQ(sum.num_blocks, 64);
    EXPECT_EQ(sum.held, 2 + 1 + 2);
    EXPECT_EQ(sum.pinned, 2);
    EXPECT_EQ(sum.shared, 2);
    EXPECT_EQ(sum.cached, 1);
  }
  blocks_->Unpin(7);
  EXPECT_TRUE(Draw().nodes[0].pins.empty());
}

// The number 0 is that of a block like others.
TEST_F(CacheMapTest, BlockZeroIsShownAsSiblingAndAsChild) {
  Make(8);
  Run(1, KeyOf("a"), Range(4, 0));  // in block 0
  ASSERT_EQ(blocks_->Table(1)[0], 0);
  Run(2, KeyOf("a"), Range(4, 100));
  EXPECT_EQ(Draw().nodes.size(), 2u);
  blocks_->Release(1);
  blocks_->FreeCached(1);
  Run(3, KeyOf("a"), Range(8, 100));
  ASSERT_EQ(blocks_->Table(3)[1], 0);
  const CacheMap map = Draw();
  ASSERT_EQ(map.nodes.size(), 2u);
  EXPECT_EQ(map.nodes[1].parent, 0);
}

TEST_F(CacheMapTest, ANodeNamesAFewPinsThatEndThere) {
  Make(8);
  Run(1, KeyOf("a"), Range(4, 0));
  for (PinId pin = 1; pin <= kMostPinsOfNode + 1; ++pin) {
    ASSERT_TRUE(blocks_->TryPin(pin, KeyOf("a"), Range(4, 0)));
    const auto num = static_cast<size_t>(std::min<PinId>(pin, kMostPinsOfNode));
    EXPECT_EQ(Draw().nodes[0].pins.size(), num);
  }
}

TEST_F(CacheMapTest, ALargeTreeIsCutAndCounted) {
  Make(5000);
  for (int i = 0; i < 900; ++i) {
    Run(i, KeyOf(absl::StrCat("t", i % 10)), Range(6, 10 * i), kNoPin, /*ends=*/true);
  }
  // One node with more children than there is room for.
  for (int i = 0; i < 900; ++i) {
    Run(i, KeyOf("wide"), Both(Range(4, 0), Range(4, 10 * i)), kNoPin, /*ends=*/true);
  }
  const CacheMap map = Draw();
  EXPECT_EQ(map.nodes.size(), static_cast<size_t>(kMostMapNodes) * 3 / 4)
      << "less those of prefixes";
  EXPECT_LE(map.cells.size(), static_cast<size_t>(kMostMapCells));
  EXPECT_GT(map.cells.size(), static_cast<size_t>(kMostMapCells) / 2);
  EXPECT_EQ(Sum(map).num_blocks, 5000);
  EXPECT_EQ(Sum(map).cached, 900 * 2 + 901);
  int64_t beginnings = map.num_hidden_roots;
  std::vector<int64_t> children(map.nodes.size());
  for (size_t i = 0; i < map.nodes.size(); ++i) {
    const CacheMapNode& node = map.nodes[i];
    ASSERT_LT(node.parent, static_cast<int32_t>(i));
    node.parent < 0 ? ++beginnings : ++children[static_cast<size_t>(node.parent)];
  }
  EXPECT_EQ(beginnings, 901);
  const auto wide = std::ranges::find(map.nodes, "wide", &CacheMapNode::tenant);
  if (wide != map.nodes.end()) {
    EXPECT_EQ(wide->num_hidden + children[static_cast<size_t>(wide - map.nodes.begin())], 900);
  }
}

TEST_F(CacheMapTest, TheTreeMayChangeDuringTheWalk) {
  Make(64);
  for (int i = 0; i < 8; ++i) {
    Run(i, KeyOf(absl::StrCat(i % 7)), Range(20, 100 * i), kNoPin, /*ends=*/true);
  }
  for (int visits = 0; visits < 60; ++visits) {
    blocks_->BeginMap();
    std::shared_ptr<const CacheMap> map;
    for (int i = 0; i < visits && map == nullptr; ++i) map = blocks_->ContinueMap(1);
    blocks_->FreeCached(visits % 2 == 0 ? 3 + visits % 20 : 64);
    Run(50, KeyOf(absl::StrCat("new", visits % 3)), Range(30, 7 * visits), kNoPin, /*ends=*/true);
    for (int i = 0; i < 1000 && map == nullptr; ++i) map = blocks_->ContinueMap(1);
    ASSERT_NE(map, nullptr);
    // Only the node that was being visited may be empty.
    ASSERT_LE(std::ranges::count(map->nodes, 0, &CacheMapNode::num_blocks), 1);
    for (const CacheMapNode& node : map->nodes) ASSERT_LE(node.num_blocks, 64);
    for (int i = 0; visits % 2 == 1 && i < 6; ++i) {
      Run(i, KeyOf(absl::StrCat(i)), Range(8, 100 * i), kNoPin, /*ends=*/true);
    }
    blocks_->CheckInvariants();
  }
}

TEST_F(CacheMapTest, ARootsNamesAreNotItsSalt) {
  const RootNames names = NamesOfRoot(KeyOf("a:b", "c\\d", "salt"));
  EXPECT_EQ(names.tenant, "a:b");
  EXPECT_EQ(names.part, "c\\d");
  for (const std::string_view bad : {"", ":", "0:", "0:123", "no colon"}) {
    EXPECT_EQ(NamesOfRoot(bad).tenant, "");
  }
}

}  // namespace
}  // namespace quire::engine
