#include "engine/scheduler/scheduler.h"

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "gtest/gtest.h"

#include "tests/engine/scheduler/simulation.h"

namespace quire::engine {
namespace {

// Returns a prefill limit that is the same beside any number of decodes.
std::function<int32_t(int32_t)> Fixed(int32_t limit) {
  return [limit](int32_t) { return limit; };
}

TEST(SchedulerTest, ALongPromptHoldsNoDecodeUp) {
  Simulation simulation({.num_blocks = 64, .scheduler = {.max_num_batched_tokens = 8}});
  const SequenceId decode = simulation.Add({.prompt = Prompt(4, 0), .max_tokens = 20});
  simulation.Step();
  const SequenceId prefill = simulation.Add({.prompt = Prompt(70, 100), .max_tokens = 2});
  for (int i = 0; i < 10; ++i) {
    simulation.Step();
    EXPECT_EQ(simulation.planned().front(), decode);
    EXPECT_EQ(simulation.Entry(prefill).num_tokens, 7);
    EXPECT_EQ(simulation.Entry(prefill).num_samples, i == 9 ? 1 : 0);
  }
  simulation.Run();
}

TEST(SchedulerTest, ContinuationsShareThePromptAndAreComputedLikeOne) {
  Simulation simulation({.num_blocks = 64});
  const SequenceId id =
      simulation.Add({.prompt = Prompt(10, 0),
                      .max_tokens = 9,
                      .n = 3,
                      .continuations = {Prompt(9, 50), Prompt(1, 60), Prompt(2, 70)}});
  simulation.Step();
  EXPECT_EQ(simulation.Entry(id).num_samples, 3);
  EXPECT_TRUE(simulation.ended().contains(id + 1)) << "its one token follows the prompt";
  simulation.Step();
  EXPECT_EQ(simulation.Entry(id).num_tokens, 1);
  EXPECT_EQ(simulation.Entry(id).num_logit_rows, 1);
  EXPECT_EQ(simulation.Entry(id + 2).num_samples, 1);
  EXPECT_EQ(simulation.last_plan().copies.size(), 1u) << "two wrote to the prompt's last block";
  simulation.Step();
  // This step computes the rest of the continuation except the last token. Each computed token has
  // a row of logits.
  EXPECT_EQ(simulation.Entry(id).num_tokens, 7);
  EXPECT_EQ(simulation.Entry(id).num_logit_rows, 7);
  EXPECT_FALSE(simulation.Step());
  EXPECT_EQ(simulation.ended().size(), 3u);
  EXPECT_EQ(simulation.num_token_rows, 10 + 8 + 1);
  EXPECT_EQ(simulation.scheduler().stats().prompt_tokens_computed, 10);
  EXPECT_EQ(simulation.scheduler().stats().scored_tokens, 9 + 1 + 2);
  EXPECT_EQ(simulation.scheduler().stats().generated_tokens, 0);
}

TEST(SchedulerTest, LongContinuationsHoldNoDecodeUp) {
  Simulation simulation(
      {.num_blocks = 128, .scheduler = {.max_num_batched_tokens = 32, .prefill_limit = Fixed(5)}});
  const SequenceId decode = simulation.Add({.prompt = Prompt(4, 0), .max_tokens = 60});
  simulation.Step();
  simulation.Add({.prompt = Prompt(10, 100),
                  .max_tokens = 41,
                  .n = 3,
                  .continuations = {Prompt(41, 150), Prompt(41, 250), Prompt(41, 350)}});
  // Beside the decode, a step computes at most 5 prefill tokens. The prompt of 10 tokens takes 2
  // steps. One step then computes the first token of each continuation. The next 3 * 39 tokens take
  // 24 steps. The last token of a continuation is not computed.
  for (int i = 0; i < 27; ++i) {
    simulation.Step();
    EXPECT_EQ(simulation.planned().front(), decode);
    EXPECT_EQ(simulation.last_plan().num_tokens, i == 2 ? 1 + 3 : i == 26 ? 1 + 2 : 1 + 5);
  }
  EXPECT_EQ(simulation.ended().size(), 3u);
  simulation.Run();
}

TEST(SchedulerTest, ComputesThePromptLessWhatIsCached) {
  Simulation simulation({.num_blocks = 64});
  simulation.Add({.prompt = Prompt(30, 0), .max_tokens = 1});
  simulation.Run();
  EXPECT_EQ(simulation.scheduler().stats().prompt_tokens_computed, 30);
  const SequenceId second = simulation.Add({.prompt = Prompt(30, 0), .max_tokens = 1});
  simulation.Run();
  EXPECT_EQ(simulation.scheduler().stats().prompt_tokens_computed, 31);
  EXPECT_EQ(simulation.scheduler().stats().prompt_tokens_cached, 29);
  EXPECT_EQ(simulation.ended().at(second).sequence.num_cached, 29);
}

// What a sequence generates is cached a block at a time, blocks of 4 tokens, and its prompt at
// once.
TEST(SchedulerTest, ARunningSequenceSharesItsPromptAndWholeBlocks) {
  Simulation simulation({});
  const SequenceId id = simulation.Add({.prompt = Prompt(9, 0), .max_tokens = 20});
  simulation.Step();
  std::vector<int32_t> prompt = Prompt(9, 0);
  prompt.push_back(1000);
  const SequenceId same = simulation.Add({.prompt = prompt, .max_tokens = 1});
  for (int i = 0; i < 5; ++i) simulation.Step();
  EXPECT_EQ(simulation.ended().at(same).sequence.num_cached, 9);
  // The 15th token is drawn, the others are computed.
  std::vector<int32_t> tokens = Prompt(9, 0);
  const std::vector<int32_t> generated = Simulation::Alone({.prompt = tokens, .max_tokens = 6}, 0);
  tokens.insert(tokens.end(), generated.begin(), generated.end());
  const SequenceId longer = simulation.Add({.prompt = tokens, .max_tokens = 1});
  simulation.Step();
  EXPECT_EQ(simulation.ended().at(longer).sequence.num_cached, 12);
  EXPECT_FALSE(simulation.ended().contains(id));
  simulation.Run();
}

TEST(SchedulerTest, WhatEndsWithinABlockIsCachedToItsLastToken) {
  for (const bool is_cancelled : {false, true}) {
    Simulation simulation({});
    const SequenceId id =
        simulation.Add({.prompt = Prompt(9, 0), .max_tokens = is_cancelled ? 20 : 6});
    for (int i = 0; i < 6; ++i) simulation.Step();
    if (is_cancelled) simulation.Cancel(id);
    simulation.Run();
    const std::vector<int32_t> tokens = simulation.ended().at(id).sequence.tokens;
    EXPECT_EQ(tokens.size(), 15u);
    const SequenceId next = simulation.Add({.prompt = tokens, .max_tokens = 1});
    simulation.Run();
    EXPECT_EQ(simulation.ended().at(next).sequence.num_cached, 14);
  }
}

TEST(SchedulerTest, WhatIsPreemptedWithinABlockComputesNothingAgain) {
  Simulation simulation({.scheduler = {.max_num_seqs = 1}});
  const SequenceId slow = simulation.Add({.prompt = Prompt(9, 0), .max_tokens = 10});
  for (int i = 0; i < 6; ++i) simulation.Step();
  simulation.sink(slow).room = 0;
  const SequenceId other = simulation.Add({.prompt = Prompt(9, 100), .max_tokens = 2});
  for (int i = 0; i < 3; ++i) simulation.Step();
  EXPECT_TRUE(simulation.ended().contains(other));
  EXPECT_EQ(simulation.scheduler().stats().num_preemptions, 1);
  simulation.sink(slow).room = 100;
  simulation.scheduler().Reconsider(slow, simulation.now);
  simulation.Run();
  EXPECT_EQ(simulation.scheduler().stats().recomputed_tokens, 0);
}

TEST(SchedulerTest, OneThatWaitsFindsWhatARunningOneComputedMeanwhile) {
  Simulation simulation({.num_blocks = 64, .scheduler = {.max_num_batched_tokens = 10}});
  for (int i = 0; i < 3; ++i) {
    simulation.Add({.prompt = Prompt(40, 0), .max_tokens = 4, .seed = static_cast<uint64_t>(i)});
  }
  simulation.Run();
  EXPECT_EQ(simulation.scheduler().stats().prompt_tokens_cached, 2 * 39);
}

// Returns tokens below 5 in which each three of them follow each other somewhere (a de Bruijn
// sequence), so that whatever comes next, there is something to draft.
std::vector<int32_t> AllTriples() {
  std::vector<int32_t> tokens = {0, 0};
  std::set<std::vector<int32_t>> seen;
  while (true) {
    int32_t next = 4;  // the largest that makes a new triple
    while (next >= 0 && seen.contains({*(tokens.end() - 2), tokens.back(), next})) --next;
    if (next < 0) return tokens;
    seen.insert({*(tokens.end() - 2), tokens.back(), next});
    tokens.push_back(next);
  }
}

TEST(SchedulerTest, DraftsLeaveTheTokensThatBeamsTakeToCatchUp) {
  // Beams that catch up take 16 of the 18 tokens of a step. The drafter gets one, and no drafts.
  Simulation simulation(
      {.num_blocks = 64,
       .scheduler = {.max_num_batched_tokens = 18, .max_draft_tokens = 4, .headroom_blocks = 0}});
  const SequenceId oldest = simulation.Add({.prompt = Prompt(3, 100), .max_tokens = 200});
  const SequenceId beams =
      simulation.Add({.prompt = Prompt(9, 0), .max_tokens = 40, .beam_width = 4});
  const SequenceId drafter = simulation.Add({.prompt = AllTriples(), .max_tokens = 60});
  // No room for what drafts would add.
  simulation.sink(oldest).room = simulation.sink(drafter).room = 1;
  while (simulation.scheduler().stats().num_preemptions == 0) ASSERT_TRUE(simulation.Step());
  simulation.Cancel(oldest);
  while (!simulation.Planned(beams)) ASSERT_TRUE(simulation.Step());
  ASSERT_EQ(simulation.scheduler().stats().drafted_tokens, 0);
  simulation.sink(drafter).room = 100;
  while (!simulation.Planned(beams + 3)) ASSERT_TRUE(simulation.Step());
  ASSERT_EQ(simulation.Entry(beams).num_tokens, 4) << "they catch up";
  EXPECT_EQ(simulation.Entry(drafter).num_tokens, 1);
  simulation.Run();
  EXPECT_GT(simulation.scheduler().stats().drafted_tokens, 0);
}

TEST(SchedulerTest, PreemptsTheCheapestOfTheYounger) {
  // The 10 blocks have room for 40 tokens. The three prompts take 10 + 10 + 3 tokens, so not all
  // generated tokens fit.
  Simulation simulation(
      {.num_blocks = 10, .scheduler = {.max_num_batched_tokens = 64, .headroom_blocks = 0}});
  const SequenceId oldest = simulation.Add({.prompt = Prompt(10, 0), .max_tokens = 20});
  const SequenceId dear = simulation.Add({.prompt = Prompt(10, 100), .max_tokens = 20});
  const SequenceId cheap = simulation.Add({.prompt = Prompt(3, 200), .max_tokens = 20});
  while (simulation.scheduler().stats().num_preemptions == 0) ASSERT_TRUE(simulation.Step());
  EXPECT_TRUE(simulation.blocks().Holds(oldest));
  EXPECT_TRUE(simulation.blocks().Holds(dear));
  EXPECT_FALSE(simulation.blocks().Holds(cheap));
  simulation.Run();
  EXPECT_EQ(simulation.ended().at(oldest).sequence.num_preemptions, 0);
  EXPECT_GT(simulation.ended().at(cheap).sequence.num_preemptions, 0);
}

TEST(SchedulerTest, AStartLeavesHeadroomToThoseThatRun) {
  Simulation simulation({.num_blocks = 10, .scheduler = {.headroom_blocks = 3}});
  for (int i = 0; i < 3; ++i) simulation.Add({.prompt = Prompt(8, 100 * i), .max_tokens = 4});
  simulation.Step();
  EXPECT_EQ(simulation.planned().size(), 2u) << "the third's 2 + 1 + 2 * 3 blocks are not there";
  simulation.Run();
  EXPECT_EQ(simulation.scheduler().stats().num_preemptions, 0);
}

TEST(SchedulerTest, RecomputesOnlyWhatTheCacheHasLost) {
  Simulation simulation(
      {.num_blocks = 10, .scheduler = {.max_num_batched_tokens = 64, .headroom_blocks = 0}});
  for (int i = 0; i < 3; ++i) simulation.Add({.prompt = Prompt(8, 100 * i), .max_tokens = 20});
  simulation.Run();
  const SchedulerStats stats = simulation.scheduler().stats();
  EXPECT_GT(stats.num_preemptions, 0);
  EXPECT_GT(stats.recomputed_tokens, 0);
  // Each request computes its 8 prompt tokens and its first 19 generated tokens once. The last
  // token is never computed. All other rows are recomputed.
  EXPECT_EQ(simulation.num_token_rows, 3 * (8 + 19) + stats.recomputed_tokens);
}

TEST(SchedulerTest, TheOldestIsPlannedInEveryStep) {
  Simulation simulation(
      {.num_blocks = 12,
       .scheduler = {.max_num_seqs = 6, .max_num_batched_tokens = 7, .headroom_blocks = 0}});
  for (int i = 0; i < 12; ++i) {
    simulation.Add({.prompt = Prompt(5 + i, 50 * i), .max_tokens = 20, .priority = i});
  }
  while (simulation.Step()) {
    // Finds the oldest running sequence. Later requests have larger ids. A running sequence holds
    // blocks, unless it was planned in this step and ended.
    SequenceId oldest = -1;
    for (SequenceId id = 12; id >= 1; --id) {
      if (simulation.blocks().Holds(id) || simulation.Planned(id)) oldest = id;
    }
    ASSERT_TRUE(oldest < 0 || simulation.Planned(oldest)) << oldest;
  }
  EXPECT_GT(simulation.scheduler().stats().num_preemptions, 0);
  EXPECT_EQ(simulation.ended().size(), 12u);
}

TEST(SchedulerTest, AYoungerDecodeDoesNotPreemptAnOlderPrefill) {
  Simulation simulation(
      {.num_blocks = 10,
       .scheduler = {
           .max_num_batched_tokens = 8, .prefill_limit = Fixed(1), .headroom_blocks = 0}});
  const SequenceId older = simulation.Add({.prompt = Prompt(24, 0), .max_tokens = 4});
  // The younger request starts beside the older one, because it has a higher priority.
  const SequenceId younger =
      simulation.Add({.prompt = Prompt(4, 50), .max_tokens = 16, .priority = 1});
  simulation.Run();
  EXPECT_EQ(simulation.ended().at(older).sequence.num_preemptions, 0);
  EXPECT_EQ(simulation.ended().at(younger).cause, EndCause::kFinished);
}

TEST(SchedulerTest, AStalledSequenceIsNotPlannedAndIsTheFirstVictim) {
  Simulation simulation(
      {.num_blocks = 10, .scheduler = {.max_num_batched_tokens = 64, .headroom_blocks = 0}});
  const SequenceId stalled = simulation.Add({.prompt = Prompt(10, 0), .max_tokens = 20});
  const SequenceId other = simulation.Add({.prompt = Prompt(10, 100), .max_tokens = 28});
  simulation.Step();
  simulation.sink(stalled).room = 0;
  while (simulation.ended().empty()) {
    ASSERT_TRUE(simulation.Step());
    EXPECT_FALSE(simulation.Planned(stalled));
  }
  EXPECT_TRUE(simulation.ended().contains(other)) << "although it is the younger";
  EXPECT_FALSE(simulation.blocks().Holds(stalled));
  simulation.sink(stalled).room = 1;
  simulation.Run();
  EXPECT_EQ(simulation.ended().at(stalled).cause, EndCause::kFinished);
  EXPECT_EQ(simulation.ended().at(stalled).sequence.num_preemptions, 1);
}

TEST(SchedulerTest, AStalledSequenceEndsAfterTheTimeout) {
  Simulation simulation({.scheduler = {.stalled_stream_timeout = absl::Seconds(30)}});
  const SequenceId id = simulation.Add({.prompt = Prompt(4, 0), .max_tokens = 20});
  simulation.Step();
  simulation.sink(id).room = 0;
  const absl::Time since = simulation.now;
  EXPECT_FALSE(simulation.Step());
  EXPECT_EQ(simulation.scheduler().NextWakeup(), since + absl::Seconds(30));
  simulation.now = since + absl::Seconds(29);
  EXPECT_FALSE(simulation.Step());
  EXPECT_TRUE(simulation.ended().empty());
  simulation.now = since + absl::Seconds(30);
  simulation.Step();
  EXPECT_EQ(simulation.ended().at(id).cause, EndCause::kStalled);
  EXPECT_FALSE(simulation.scheduler().HasWork());
}

TEST(SchedulerTest, WhoseReadersAreStuckMakeWayForThoseThatWait) {
  Simulation simulation({.num_blocks = 64, .scheduler = {.max_num_seqs = 2}});
  std::vector<SequenceId> stuck;
  for (int i = 0; i < 2; ++i) stuck.push_back(simulation.Add({.prompt = Prompt(4, 9 * i)}));
  simulation.Step();
  for (const SequenceId id : stuck) simulation.sink(id).room = 0;
  const SequenceId other = simulation.Add({.prompt = Prompt(4, 50)});
  while (simulation.Step()) {
  }
  EXPECT_TRUE(simulation.ended().contains(other));
}

TEST(SchedulerTest, WhatIsCancelledOrPastItsDeadlineIsFreeAtTheNextSchedule) {
  Simulation simulation({});
  const SequenceId cancelled = simulation.Add({.prompt = Prompt(9, 0)});
  const SequenceId late =
      simulation.Add({.prompt = Prompt(9, 20), .deadline = simulation.now + absl::Seconds(1)});
  const SequenceId by_id = simulation.Add({.prompt = Prompt(9, 40)});
  simulation.Step();
  simulation.Cancel(cancelled);
  simulation.now += absl::Seconds(1);
  EXPECT_TRUE(simulation.scheduler().Cancel(by_id).ok());
  EXPECT_EQ(simulation.scheduler().Cancel(by_id).code(), absl::StatusCode::kNotFound);
  simulation.Step();
  EXPECT_EQ(simulation.ended().at(cancelled).cause, EndCause::kCancelled);
  EXPECT_EQ(simulation.ended().at(late).cause, EndCause::kDeadline);
  EXPECT_EQ(simulation.ended().at(by_id).cause, EndCause::kCancelled);
  EXPECT_EQ(simulation.ended().at(late).sequence.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(simulation.blocks().stats().num_held, 0);
}

TEST(SchedulerTest, SamplesOfOneRequestShareItsPrompt) {
  Simulation simulation({.num_blocks = 64});
  const RequestSpec spec{.prompt = Prompt(18, 0), .max_tokens = 3, .n = 4, .seed = 7};
  const SequenceId first = simulation.Add(spec);
  simulation.Step();
  EXPECT_EQ(simulation.Entry(first).num_samples, 4);
  EXPECT_EQ(simulation.blocks().stats().num_held, 5);
  simulation.Step();
  EXPECT_EQ(simulation.planned().size(), 4u);
  EXPECT_EQ(simulation.last_plan().copies.size(), 3u) << "the last writes the shared tail in place";
  EXPECT_EQ(simulation.blocks().stats().num_held, 4 + 4);
  simulation.Run();
  EXPECT_EQ(simulation.scheduler().stats().prompt_tokens_computed, 18);
  for (int k = 0; k < 4; ++k) {
    const Sequence& sequence = simulation.ended().at(first + k).sequence;
    EXPECT_EQ(sequence.sample_index, k);
    EXPECT_EQ(std::vector(sequence.tokens.begin() + 18, sequence.tokens.end()),
              Simulation::Alone(spec, k));
  }
}

TEST(SchedulerTest, PlacesForAllSamplesAreKept) {
  Simulation simulation({.num_blocks = 64, .scheduler = {.max_num_seqs = 4}});
  simulation.Add({.prompt = Prompt(4, 0), .max_tokens = 8});
  const SequenceId four = simulation.Add({.prompt = Prompt(4, 10), .max_tokens = 8, .n = 4});
  const SequenceId one = simulation.Add({.prompt = Prompt(4, 20), .max_tokens = 8});
  simulation.Step();
  EXPECT_FALSE(simulation.Planned(four));
  EXPECT_FALSE(simulation.Planned(one)) << "nobody passes the one that does not fit";
  simulation.Run();
  EXPECT_EQ(simulation.ended().size(), 6u);
}

TEST(SchedulerTest, SamplesOfOneRequestShareTheRoomOfItsSink) {
  Simulation simulation({.num_blocks = 64});
  const SequenceId id = simulation.Add({.prompt = Prompt(6, 0), .max_tokens = 8, .n = 4});
  simulation.Step();
  for (const int32_t room : {2, 3, 1}) {
    simulation.sink(id).room = room;
    simulation.Step();
    EXPECT_EQ(static_cast<int32_t>(simulation.planned().size()), room);
  }
  simulation.sink(id).room = 4;
  simulation.Run();
  EXPECT_EQ(simulation.ended().size(), 4u);
}

TEST(SchedulerTest, PromptLogprobsComeInChunksOfRowsAndReadNoCache) {
  Simulation simulation({.num_blocks = 64, .scheduler = {.max_logit_rows = 8}});
  simulation.Add({.prompt = Prompt(20, 0), .max_tokens = 1});
  simulation.Run();
  const SequenceId id =
      simulation.Add({.prompt = Prompt(20, 0), .max_tokens = 2, .prompt_logprobs = true});
  for (const int32_t rows : {8, 8, 4}) {
    simulation.Step();
    EXPECT_EQ(simulation.Entry(id).num_tokens, rows);
    EXPECT_EQ(simulation.Entry(id).num_logit_rows, rows);
    EXPECT_EQ(simulation.Entry(id).num_samples, rows == 4 ? 1 : 0);
  }
  simulation.Step();
  EXPECT_EQ(simulation.Entry(id).num_logit_rows, 1);
  EXPECT_EQ(simulation.scheduler().stats().prompt_tokens_cached, 0);
}

TEST(SchedulerTest, RunsOneStepAheadOnTokensNotHereYet) {
  Simulation simulation({.scheduler = {.pipeline_depth = 1}});
  const RequestSpec spec{.prompt = Prompt(6, 0), .max_tokens = 40, .stop_one_in = 4};
  const SequenceId id = simulation.Add(spec);
  simulation.Step();
  EXPECT_EQ(simulation.Entry(id).token_from_previous, -1);
  simulation.Step();
  EXPECT_EQ(simulation.Entry(id).token_from_previous, 0);
  EXPECT_EQ(simulation.Entry(id).first_position, 6);
  simulation.Run();
  const Sequence& sequence = simulation.ended().at(id).sequence;
  EXPECT_EQ(sequence.finish_reason, FinishReason::kStop);
  EXPECT_EQ(simulation.scheduler().stats().num_overrun, 1);
  EXPECT_EQ(std::vector(sequence.tokens.begin() + 6, sequence.tokens.end()),
            Simulation::Alone(spec, 0));
}

TEST(SchedulerTest, AFailedStepEndsWhatWasInIt) {
  Simulation simulation({});
  const SequenceId id = simulation.Add({.prompt = Prompt(9, 0)});
  simulation.fail_next = true;
  simulation.Step();
  EXPECT_EQ(simulation.ended().at(id).cause, EndCause::kFailed);
  EXPECT_EQ(simulation.blocks().stats().num_free, 64) << "nothing of it may be found later";
}

}  // namespace
}  // namespace quire::engine
