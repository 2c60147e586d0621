#include "engine/model/layers/block_tables.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

#include "engine/model/decode_bucket.h"
#include "kernels/backend_registry.h"

namespace quire::engine {
namespace {

constexpr int64_t kMaxSeqs = 3, kMaxBlocks = 4;
constexpr int32_t kTokens = 16;  // of a block

class BlockTablesTest : public ::testing::Test {
 protected:
  // A step of sequences with the block tables `rows`, alike in both groups that have layers.
  static ModelInput Step(const std::vector<std::vector<int32_t>>& rows) {
    ModelInput input;
    input.groups.resize(3);
    size_t longest = 0;
    for (const std::vector<int32_t>& row : rows) {
      longest = std::max(longest, row.size());
      input.query_lens.push_back(1);
      // The last block has one token.
      input.context_lens.push_back((static_cast<int32_t>(row.size()) - 1) * kTokens + 1);
    }
    for (int32_t group = 0; group < 3; ++group) {
      input.groups[group].max_blocks_per_seq = static_cast<int64_t>(longest);
      for (std::vector<int32_t> row : rows) {
        for (int32_t& block : row) block += group;
        row.resize(longest, 0);
        std::ranges::copy(row, std::back_inserter(input.groups[group].block_table));
      }
    }
    return input;
  }

  int64_t NumChanges(const ModelInput& input) {
    return std::ssize(tables_.Changes(input, groups_));
  }
  // Returns the number of changes.
  int64_t Update(const ModelInput& input) {
    const auto changes = tables_.Changes(input, groups_);
    EXPECT_LE(static_cast<int64_t>(changes.size_bytes()), tables_.max_changes_bytes());
    const kernels::TensorView view(const_cast<kernels::TableChange*>(changes.data()),
                                   kernels::DType::kI32, {std::ssize(changes), 2});
    EXPECT_TRUE(tables_.Update(*backend_, view).ok());
    return std::ssize(changes);
  }
  void ExpectTables(const std::vector<std::vector<int32_t>>& rows) {
    for (const size_t group : {size_t{0}, size_t{2}}) {
      const kernels::TensorView table = tables_.table(group, std::ssize(rows));
      ASSERT_EQ(table.dim(1), kMaxBlocks);
      for (size_t seq = 0; seq < rows.size(); ++seq) {
        const int32_t* const row = table.data<const int32_t>() + seq * kMaxBlocks;
        for (size_t i = 0; i < rows[seq].size(); ++i) {
          ASSERT_EQ(row[i], rows[seq][i] + static_cast<int32_t>(group));
        }
      }
    }
  }

  const std::unique_ptr<kernels::Backend> backend_ = *kernels::CreateBackend({});
  const std::vector<KvGroup> groups_ = {{.layers = {0}}, {}, {.layers = {1, 2}}};
  BlockTables tables_ = *BlockTables::Create(*backend_, 2, kMaxSeqs, kMaxBlocks, kTokens);
};

TEST_F(BlockTablesTest, ARowThatGrowsChangesByAnEntry) {
  EXPECT_EQ(Update(Step({{5, 6}, {7}})), 2 * 3);
  EXPECT_EQ(Update(Step({{5, 6}, {7}})), 0);
  EXPECT_EQ(Update(Step({{5, 6}, {7, 8}})), 2 * 1);
  ExpectTables({{5, 6}, {7, 8}});
  EXPECT_EQ(Update(Step({{5, 6}})), 0) << "a sequence that left";
  EXPECT_EQ(Update(Step({{7, 8}})), 2 * 2) << "a sequence in another row";
  EXPECT_EQ(Update(Step({{7, 9}})), 2 * 1) << "a block that was copied to be written";
  ExpectTables({{7, 9}});
}

TEST_F(BlockTablesTest, AfterAnUpdateThatFailedEveryEntryChanges) {
  const ModelInput step = Step({{5, 6}, {7}});
  Update(step);
  EXPECT_EQ(NumChanges(step), 0);  // not followed by an update
  EXPECT_EQ(Update(step), 2 * 3);
  EXPECT_EQ(Update(step), 0);
  ExpectTables({{5, 6}, {7}});
}

RC_GTEST_FIXTURE_PROP(BlockTablesTest, HoldWhatTheLastStepReads, ()) {
  std::vector<std::vector<int32_t>> rows;
  for (int step = 0; step < 20; ++step) {
    rows.resize(*rc::gen::inRange<size_t>(1, kMaxSeqs + 1));
    for (std::vector<int32_t>& row : rows) {
      if (!row.empty() && *rc::gen::inRange(0, 3) > 0) continue;
      row = *rc::gen::container<std::vector<int32_t>>(*rc::gen::inRange<size_t>(1, kMaxBlocks + 1),
                                                      rc::gen::inRange(0, 9));
    }
    Update(Step(rows));
    ExpectTables(rows);
    RC_ASSERT(!HasFatalFailure());
  }
}

TEST_F(BlockTablesTest, MoreEntriesThanAnIndexCountsAreRefused) {
  EXPECT_THAT(
      std::string(BlockTables::Create(*backend_, 2, 1 << 15, 1 << 15, 16).status().message()),
      ::testing::HasSubstr("lower --max_num_seqs or --max_model_len"));
}

TEST(DecodeBucketTest, FewSizesServeAllSteps) {
  std::vector<int64_t> buckets;
  for (int64_t n = 1; n <= 20; ++n) {
    const int64_t bucket = DecodeBucket(n, 20);
    EXPECT_GE(bucket, n);
    if (buckets.empty() || buckets.back() != bucket) buckets.push_back(bucket);
  }
  EXPECT_THAT(buckets, ::testing::ElementsAre(1, 2, 4, 8, 16, 20));
}

}  // namespace
}  // namespace quire::engine
