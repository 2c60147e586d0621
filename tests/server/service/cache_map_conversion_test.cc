// Tests the picture of the cache as a message and as JSON: bounds, and names of any bytes.

#include "server/service/cache_map_conversion.h"

#include <chrono>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/json.h"
#include "tests/server/fake_engine.h"

namespace quire::server {
namespace {

using testing::FakeEngine;

constexpr std::chrono::seconds kJsonPatience(5);

engine::CacheMap LargestMap(const std::string& name) {
  engine::CacheMap map{.block_size = 16, .num_blocks = engine::kMostMapCells * 100};
  map.cells.assign(engine::kMostMapCells,
                   {.num_blocks = 100, .cached = 30, .held = 60, .pinned = 20, .shared = 10});
  map.nodes.assign(engine::kMostMapNodes, {.tenant = name, .part = name, .num_blocks = 1 << 30});
  for (int32_t i = 1; i < engine::kMostMapNodes; ++i) map.nodes[i].parent = (i - 1) / 2;
  return map;
}

TEST(CacheMapConversionTest, NumbersOutOfRangeAreRefused) {
  v1::GetCacheMapRequest request;
  EXPECT_EQ(FromProto(request)->cells, 1024);
  EXPECT_EQ(FromProto(request)->nodes, 256);
  for (const auto& [cells, nodes, ok] :
       {std::tuple(1u, 0u, true), std::tuple(4096u, 512u, true), std::tuple(0u, 0u, false),
        std::tuple(4097u, 0u, false), std::tuple(1u, 513u, false), std::tuple(~0u, ~0u, false)}) {
    request.set_cells(cells);
    request.set_max_nodes(nodes);
    EXPECT_EQ(FromProto(request).ok(), ok) << cells << ' ' << nodes;
  }
}

TEST(CacheMapConversionTest, FewerCellsAndNodesLoseNoBlock) {
  FakeEngine engine;
  const engine::CacheMap map = LargestMap("t");
  for (const int32_t cells : {1, 3, 1000, 4096}) {
    const v1::GetCacheMapResponse out = ToProto(map, engine, {}, {.cells = cells, .nodes = 7});
    ASSERT_EQ(out.cells_size(), cells);
    uint64_t total = 0;
    for (const v1::CacheCell& cell : out.cells())
      total += cell.free() + cell.cached() + cell.held();
    EXPECT_EQ(total, static_cast<uint64_t>(map.num_blocks));
    ASSERT_EQ(out.nodes_size(), 7);
    EXPECT_FALSE(out.nodes(0).has_parent());
    EXPECT_EQ(out.nodes(6).parent(), 2u);
    EXPECT_EQ(out.nodes(2).num_hidden(), 0u) << "both of its children are shown";
    EXPECT_EQ(out.nodes(3).num_hidden(), 2u);
  }
}

TEST(CacheMapConversionTest, JsonIsBoundedForNamesOfAnyBytes) {
  FakeEngine engine;
  for (const std::string& name :
       {std::string(128, '\x01'), std::string(128, '"'), std::string(128, '\xff'),
        std::string("</script><script>alert(1)</script>\xe2\x80\xa8")}) {
    engine.SetCacheMap(LargestMap(name));
    const std::string json = CacheMapJson(engine, kJsonPatience);
    EXPECT_LE(json.size(), kMostCacheJsonBytes);
    EXPECT_GT(json.size(), kMostCacheJsonBytes / 8) << "as much as fits";
    const auto parsed = base::ParseJson(json, "json");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ((*parsed)["num_blocks"], engine::kMostMapCells * 100);
    int64_t total = 0;
    for (const auto& cell : (*parsed)["cells"]) {
      total += cell[0].get<int64_t>() + cell[1].get<int64_t>() + cell[2].get<int64_t>();
    }
    EXPECT_EQ(total, engine::kMostMapCells * 100);
  }
}

}  // namespace
}  // namespace quire::server
