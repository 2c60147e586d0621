#include "engine/batch/batch_builder.h"

#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;

TEST(BatchBuilderTest, APlanOfADecodeAndAShiftedChunkBecomesFlatRows) {
  BlockManager blocks({.num_blocks = 8, .block_size = 16});
  Sequence decode{.id = 1}, prefill{.id = 2};
  for (int i = 0; i < 18; ++i) decode.tokens.push_back(100 + i);
  for (int i = 0; i < 40; ++i) prefill.tokens.push_back(200 + i);

  blocks.BeginStep(1);
  blocks.StartSequence(1, "root", decode.tokens, {});
  blocks.StartSequence(2, "root", prefill.tokens, {});
  ASSERT_TRUE(blocks.TryGrow(1, 18));
  ASSERT_TRUE(blocks.TryGrow(2, 20));
  StepPlan plan{.step = 1, .num_tokens = 4};
  blocks.EndStep(true, &plan.copies, &plan.shifts);
  plan.copies.push_back({.source = 5, .destination = 6});
  plan.entries = {{.sequence = &decode,
                   .first_index = 17,
                   .first_position = 17,
                   .num_tokens = 1,
                   .num_logit_rows = 1,
                   .num_samples = 1},
                  {.sequence = &prefill,
                   .first_index = 31,
                   .first_position = 15,
                   .num_tokens = 3,
                   .num_logit_rows = 2}};

  ModelInput input;
  input.token_ids = {9, 9, 9};  // left from an earlier step
  BatchBuilder builder(blocks);
  builder.Build(plan, input);

  const auto first = blocks.Table(1), second = blocks.Table(2);
  EXPECT_THAT(input.token_ids, ElementsAre(117, 231, 232, 233));
  EXPECT_THAT(input.positions, ElementsAre(17, 15, 16, 17));
  EXPECT_THAT(input.query_starts, ElementsAre(0, 1, 4));
  EXPECT_THAT(input.query_lens, ElementsAre(1, 3));
  EXPECT_THAT(input.context_lens, ElementsAre(18, 18));
  EXPECT_THAT(input.logit_rows, ElementsAre(0, 2, 3));
  ASSERT_EQ(input.groups.size(), 1);
  const GroupInput& group = input.groups[0];
  EXPECT_THAT(group.slot_mapping, ElementsAre(first[1] * 16 + 1, second[0] * 16 + 15,
                                              second[1] * 16, second[1] * 16 + 1));
  EXPECT_EQ(group.max_blocks_per_seq, 2);
  EXPECT_THAT(group.block_table, ElementsAre(first[0], first[1], second[0], second[1]));
  ASSERT_EQ(group.copies.size(), 1);
  EXPECT_EQ(group.copies[0].destination, 6);
}

// Two decodes start from 256 tokens of the cache. A chunk of a prompt does, too, but it shares no
// keys. The third decode has only 255 tokens before its own.
TEST(BatchBuilderTest, DecodesShareTheBlocksBeforeTheirQueries) {
  BlockManager blocks({.num_blocks = 64, .block_size = 64});
  std::vector<int32_t> prompt(300);
  std::iota(prompt.begin(), prompt.end(), 0);
  StepPlan first;
  blocks.BeginStep(1);
  blocks.StartSequence(9, "root", prompt, {});
  ASSERT_TRUE(blocks.TryGrow(9, 300));
  blocks.EndStep(true, &first.copies, &first.shifts);
  blocks.CompleteStep(1);
  blocks.Commit(9, prompt, 300);

  std::vector<Sequence> sequences(4);
  StepPlan plan{.step = 2};
  blocks.BeginStep(2);
  for (SequenceId id = 0; id < 4; ++id) {
    Sequence& sequence = sequences[static_cast<size_t>(id)];
    sequence.id = id;
    sequence.tokens = prompt;
    const int32_t num_tokens = id == 1 ? 2 : 1;
    sequence.tokens.resize(id == 2 ? 256 : 300);
    const auto position = static_cast<int32_t>(sequence.tokens.size()) - num_tokens;
    blocks.StartSequence(id, "root", sequence.tokens, {});
    ASSERT_TRUE(blocks.TryGrow(id, position + num_tokens));
    plan.entries.push_back({.sequence = &sequence,
                            .first_index = position,
                            .first_position = position,
                            .num_tokens = num_tokens,
                            .num_logit_rows = 1,
                            .num_samples = 1});
  }
  blocks.EndStep(true, &plan.copies, &plan.shifts);
  ModelInput input;
  BatchBuilder builder(blocks, 256);
  builder.Build(plan, input);
  ASSERT_EQ(input.shared_keys.size(), 1);
  EXPECT_EQ(input.shared_keys[0].first, 0);
  EXPECT_EQ(input.shared_keys[0].num_keys, 256);
  EXPECT_THAT(input.shared_seqs, ElementsAre(0, 3));
  EXPECT_EQ(builder.num_shared_prefixes(), 1);
  EXPECT_EQ(builder.num_saved_keys(), 256);
  builder.Build(plan, input);
  EXPECT_EQ(builder.num_saved_keys(), 2 * 256);

  for (const int64_t least : {0, 257}) {
    BatchBuilder other(blocks, least);
    other.Build(plan, input);
    EXPECT_TRUE(input.shared_seqs.empty());
    EXPECT_TRUE(input.shared_keys.empty());
    EXPECT_EQ(other.num_saved_keys(), 0);
  }
}

TEST(BatchBuilderTest, DraftsFollowTheTokensOfTheirSequence) {
  BlockManager blocks({.num_blocks = 8, .block_size = 16});
  Sequence sequence{.id = 1};
  for (int i = 0; i < 15; ++i) sequence.tokens.push_back(100 + i);
  blocks.BeginStep(1);
  blocks.StartSequence(1, "root", sequence.tokens, {});
  ASSERT_TRUE(blocks.TryGrow(1, 17));
  StepPlan plan{.step = 1, .drafts = {7, 8, 9}, .num_tokens = 3};
  blocks.EndStep(true, &plan.copies, &plan.shifts);
  plan.entries = {{.sequence = &sequence,
                   .first_index = 14,
                   .first_position = 14,
                   .num_tokens = 3,
                   .num_logit_rows = 3,
                   .num_samples = 1,
                   .num_drafts = 2,
                   .first_draft = 1}};
  ModelInput input;
  BatchBuilder(blocks).Build(plan, input);
  const auto table = blocks.Table(1);
  EXPECT_THAT(input.token_ids, ElementsAre(114, 8, 9));
  EXPECT_THAT(input.positions, ElementsAre(14, 15, 16));
  EXPECT_THAT(input.logit_rows, ElementsAre(0, 1, 2));
  EXPECT_THAT(input.groups[0].slot_mapping,
              ElementsAre(table[0] * 16 + 14, table[0] * 16 + 15, table[1] * 16));
  EXPECT_TRUE(input.token_sources.empty());
}

TEST(BatchBuilderTest, ATokenThatOnlyTheDeviceKnowsIsNamedByItsSource) {
  BlockManager blocks({.num_blocks = 8, .block_size = 16});
  Sequence known{.id = 1}, unknown{.id = 2};
  known.tokens = unknown.tokens = {100, 101, 102};
  blocks.BeginStep(1);
  for (const SequenceId id : {1, 2}) {
    blocks.StartSequence(id, "root", known.tokens, {});
    ASSERT_TRUE(blocks.TryGrow(id, 4));
  }
  StepPlan plan{.step = 1, .num_tokens = 3};
  blocks.EndStep(true, &plan.copies, &plan.shifts);
  plan.entries = {{.sequence = &known, .first_index = 1, .first_position = 1, .num_tokens = 2},
                  {.sequence = &unknown,
                   .first_index = 3,
                   .first_position = 3,
                   .num_tokens = 1,
                   .num_logit_rows = 1,
                   .num_samples = 1,
                   .token_from_previous = 5}};
  ModelInput input;
  BatchBuilder builder(blocks);
  builder.Build(plan, input);
  EXPECT_THAT(input.token_ids, ElementsAre(101, 102, 0));
  EXPECT_THAT(input.token_sources, ElementsAre(-1, -1, 5));
  EXPECT_THAT(input.context_lens, ElementsAre(3, 4));

  std::swap(plan.entries[0], plan.entries[1]);
  builder.Build(plan, input);
  EXPECT_THAT(input.token_sources, ElementsAre(5, -1, -1));
  plan.entries.erase(plan.entries.begin());
  builder.Build(plan, input);
  EXPECT_TRUE(input.token_sources.empty()) << "the host knows every token";
}

TEST(BatchBuilderTest, ACopyInAWindowIsOfTheWindowsOwnBlocks) {
  BlockManagerConfig config{.num_blocks = 40, .block_size = 4, .max_step_tokens = 8};
  config.windows = {{.pattern = kernels::AttentionPattern::Window(6), .num_blocks = 10}};
  BlockManager blocks(config);
  Sequence parent{.id = 1}, child{.id = 2};
  for (int i = 0; i < 59; ++i) parent.tokens.push_back(100 + i);
  child.tokens = parent.tokens;
  std::vector<kernels::BlockCopy> copies;
  std::vector<kernels::KeyShift> shifts;
  int64_t step = 0;
  // The KV group with the window has only 10 blocks, and reuses those that leave the window. So the
  // last of the sequence's 15 blocks has a different number in each group.
  for (int64_t done = 0; done < 58;) {
    blocks.BeginStep(++step);
    if (done == 0) {
      blocks.StartSequence(1, "root", parent.tokens, {});
      ASSERT_TRUE(blocks.TryGrow(1, 58));
    }
    done = std::min<int64_t>(done + 8, 58);
    blocks.PrepareWrite(1, done);
    blocks.EndStep(true, &copies, &shifts);
    blocks.CompleteStep(step);
    blocks.Commit(1, parent.tokens, done);
  }
  ASSERT_TRUE(blocks.TryFork(1, 2));
  StepPlan plan{.step = ++step, .num_tokens = 1};
  blocks.BeginStep(step);
  ASSERT_TRUE(blocks.TryGrow(2, 59));
  blocks.PrepareWrite(2, 59);
  blocks.EndStep(true, &plan.copies, &plan.shifts);
  plan.entries = {{.sequence = &child, .first_index = 58, .first_position = 58, .num_tokens = 1}};
  ModelInput input;
  BatchBuilder(blocks).Build(plan, input);

  const int32_t source = blocks.Table(1).back(), destination = blocks.Table(2).back();
  ASSERT_EQ(input.groups.size(), 2);
  ASSERT_EQ(input.groups[0].copies.size(), 1);
  EXPECT_EQ(input.groups[0].copies[0].source, source);
  EXPECT_EQ(input.groups[0].copies[0].destination, destination);
  ASSERT_EQ(input.groups[1].copies.size(), 1);
  EXPECT_EQ(input.groups[1].copies[0].source, blocks.BlockIn(1, source));
  EXPECT_EQ(input.groups[1].copies[0].destination, blocks.BlockIn(1, destination));
  EXPECT_NE(blocks.BlockIn(1, source), source) << "numbers that are equal would show nothing";
  EXPECT_NE(blocks.BlockIn(1, destination), destination);
}

}  // namespace
}  // namespace quire::engine
