// Runs random requests on tiny caches. Tests that each sequence reads only its own context, that
// each request ends with the tokens that it gives when it runs alone, and that no step loses a
// block.

#include <cstdint>
#include <random>
#include <rapidcheck.h>
#include <vector>

#include "gtest/gtest.h"

#include "tests/engine/scheduler/simulation.h"

namespace quire::engine {
namespace {

struct Totals {
  int64_t preemptions = 0;
  int64_t recomputed = 0;
  int64_t cached = 0;
  int64_t copies = 0;
  int64_t evictions = 0;
  int64_t forks = 0;
  int64_t overrun = 0;
  int64_t dropped = 0;
  int64_t deduplicated = 0;
  int64_t taken_away = 0;  // blocks of windows that were taken away
  int64_t shifted = 0;     // blocks that were shifted
  int64_t scored = 0;
  int64_t accepted = 0;  // drafted tokens that were right
  int64_t refused = 0;   // drafted tokens that were wrong
  int64_t searches = 0;  // beam searches that were preempted
  int64_t searches_in_windows = 0;
  int64_t beam_copies = 0;
};

// Runs one world. `seed` decides all random choices in it.
void RunWorld(uint32_t seed, int32_t depth, bool disturb, Totals& totals) {
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  SimulationConfig config{.num_blocks = pick(6, 40), .block_size = pick(1, 6)};
  const int32_t max_num_seqs = pick(1, 8);
  config.scheduler = {.max_num_seqs = max_num_seqs,
                      .max_num_batched_tokens = max_num_seqs + pick(0, 16),
                      .max_logit_rows = pick(1, 6),
                      .max_draft_tokens = depth == 0 ? pick(0, 1) * pick(1, 6) : 0,
                      .pipeline_depth = depth,
                      .headroom_blocks = pick(0, 2),
                      .starts_per_oldest = pick(1, 8)};
  if (const int limit = pick(0, 1) * pick(1, 9); limit > 0) {
    config.scheduler.prefill_limit = [limit](int32_t) { return limit; };
  }
  if (const int rows = pick(0, 1) * pick(1, 20); rows > 0) {
    config.scheduler.row_share = [rows](int32_t more) { return 1.0 / (rows + more); };
  }
  for (int i = pick(0, 2); i > 0; --i) {
    const int tokens = pick(1, 12);
    config.patterns.push_back(pick(0, 1) == 0 ? kernels::AttentionPattern::Window(tokens)
                                              : kernels::AttentionPattern::Chunk(tokens));
  }
  config.full_windows = pick(1, max_num_seqs);
  config.spare_window_blocks = pick(0, 1) * pick(0, 30);
  const int32_t most_together = config.patterns.empty() ? max_num_seqs : config.full_windows;
  Simulation simulation(config);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::pair<SequenceId, RequestSpec>> added;
  const int num_requests = pick(1, 24);
  const int64_t capacity = int64_t{config.num_blocks} * config.block_size;
  int num_added = 0;
  for (int step = 0; num_added < num_requests || simulation.scheduler().HasWork(); ++step) {
    ASSERT_LT(step, 20000) << "seed " << seed;
    if (num_added < num_requests && pick(0, 2) == 0) {
      ++num_added;
      RequestSpec spec;
      if (!prompts.empty() && pick(0, 3) > 0) {  // begins with a prefix of another prompt
        const auto& other = prompts[pick(0, static_cast<int>(prompts.size()) - 1)];
        spec.prompt.assign(other.begin(), other.begin() + pick(0, static_cast<int>(other.size())));
      }
      for (int i = pick(1, 12); i > 0; --i) spec.prompt.push_back(pick(0, 2));
      const bool stream = config.patterns.empty() && pick(0, 1) == 0;
      if (stream) {
        spec.window_tokens = pick(config.block_size + 1, 4 * config.block_size);
        spec.sink_tokens = pick(0, 2 * config.block_size);
        const auto fits = [&] {
          return CacheWindow::Of(spec.sink_tokens, spec.window_tokens, config.block_size)
                     .MostHeld() <= capacity;
        };
        if (!fits()) spec.sink_tokens = 0;
        if (!fits()) spec.window_tokens = 2 * config.block_size;
        spec.max_tokens = pick(1, 60);
      } else {
        const int64_t longest = std::min<int64_t>(capacity - 2, 60);
        if (static_cast<int64_t>(spec.prompt.size()) > longest) spec.prompt.resize(longest);
        spec.max_tokens = pick(1, static_cast<int>(std::min<int64_t>(
                                      30, capacity - static_cast<int64_t>(spec.prompt.size()))));
      }
      spec.n = pick(0, 3) == 0 ? pick(1, config.scheduler.max_num_seqs) : 1;
      spec.seed = pick(0, 3);
      spec.stop_one_in = pick(0, 1) * pick(2, 20);
      spec.priority = pick(-1, 1);
      spec.tenant = pick(0, 3) == 0 ? "b" : "a";
      spec.limits.max_blocks = pick(0, 2) == 0 ? pick(1, config.num_blocks) : 0;
      spec.salt = pick(0, 5) == 0 ? "s" : "";
      spec.bypass_read = pick(0, 7) == 0;
      spec.bypass_write = pick(0, 7) == 0;
      spec.prompt_logprobs = pick(0, 5) == 0;
      if (!stream && !spec.prompt_logprobs && pick(0, 3) == 0) {
        for (int32_t k = 0; k < spec.n; ++k) {
          std::vector<int32_t>& tokens = spec.continuations.emplace_back();
          for (int i = k == 0 ? spec.max_tokens : pick(1, spec.max_tokens); i > 0; --i) {
            tokens.push_back(pick(0, 2));
          }
        }
        spec.stop_one_in = 0;
      }
      if (!stream && !spec.prompt_logprobs && spec.continuations.empty() && most_together > 1 &&
          pick(0, 2) == 0) {
        const int32_t width = pick(2, most_together);
        const int64_t most =
            MaxNewTokens(config.num_blocks, config.block_size, std::ssize(spec.prompt), width);
        if (most > 0) {
          spec.n = 1;
          spec.beam_width = width;
          spec.max_tokens = static_cast<int32_t>(std::min<int64_t>(spec.max_tokens, most));
        }
      }
      if (disturb && pick(0, 4) == 0) {
        spec.deadline = simulation.now + absl::Milliseconds(pick(1, 40));
      }
      prompts.push_back(spec.prompt);
      added.emplace_back(simulation.Add(spec), spec);
    }
    if (disturb && !added.empty()) {
      auto& [id, spec] = added[pick(0, static_cast<int>(added.size()) - 1)];
      const int what = pick(0, 19);
      if (what == 0) simulation.Cancel(id);
      if (what == 1) (void)simulation.scheduler().Cancel(id + pick(0, spec.n - 1));
      if (what == 2 || what == 3) simulation.sink(id).room = pick(0, spec.n);
      if (what > 12) simulation.sink(id).room = 1 << 20;
      if (pick(0, 99) == 0) simulation.fail_next = true;
    }
    simulation.now += absl::Milliseconds(1);
    const bool any = simulation.Step();
    if (!any && simulation.scheduler().HasWork()) {
      // Only stalled sequences are left.
      ASSERT_LT(simulation.scheduler().NextWakeup(), absl::InfiniteFuture()) << "seed " << seed;
      simulation.now += absl::Seconds(pick(0, 1) * 31);
    }
  }
  const BlockStats blocks = simulation.blocks().stats();
  EXPECT_EQ(blocks.num_free + blocks.num_cached, blocks.num_total) << "seed " << seed;
  for (int32_t group = 1; group < simulation.blocks().num_kv_groups(); ++group) {
    const WindowStats window = simulation.blocks().window_stats(group);
    EXPECT_EQ(window.num_free + window.num_spare, window.num_total) << "seed " << seed;
    totals.taken_away += window.num_taken_away;
  }
  const SchedulerStats stats = simulation.scheduler().stats();
  // Counts the generated tokens that steps computed, each token once. The last token of a sequence
  // is never computed.
  int64_t fed = 0;

  for (const auto& [id, spec] : added) {
    for (int32_t k = 0; k < spec.n; ++k) {
      const auto end = simulation.ended().find(id + k);
      if (end == simulation.ended().end()) {
        // The first sample ended before the others were forked from it.
        ASSERT_TRUE(k > 0 && simulation.ended().at(id).cause != EndCause::kFinished)
            << "seed " << seed << ", sequence " << id + k;
        continue;
      }
      const Sequence& sequence = end->second.sequence;
      const bool finished = end->second.cause == EndCause::kFinished;
      const std::vector<int32_t> alone = Simulation::Alone(spec, k);
      const std::vector<int32_t> generated(sequence.tokens.begin() + sequence.prompt_len(),
                                           sequence.tokens.end());
      ASSERT_LE(generated.size(), alone.size());
      // The tokens of a beam are replaced until its end. The simulation compares them in each step.
      EXPECT_TRUE((spec.beam_width > 0 && !finished) ||
                  std::equal(generated.begin(), generated.end(), alone.begin()));
      fed +=
          spec.beam_width > 0 ? spec.beam_width * std::ssize(generated) : std::ssize(generated) - 1;
      if (spec.beam_width > 0 && sequence.num_preemptions > 0) {
        ++(config.patterns.empty() ? totals.searches : totals.searches_in_windows);
      }
      if (finished) {
        EXPECT_EQ(generated, alone) << "seed " << seed << ", sequence " << id + k;
      } else {
        ASSERT_TRUE(disturb);
        ++totals.dropped;
      }
      totals.forks += k > 0 ? 1 : 0;
    }
  }
  if (!disturb) {
    int64_t prompt_tokens = 0;
    for (const auto& [id, spec] : added) prompt_tokens += static_cast<int64_t>(spec.prompt.size());
    EXPECT_EQ(stats.prompt_tokens_cached + stats.prompt_tokens_computed, prompt_tokens)
        << "seed " << seed;
    EXPECT_EQ(stats.scheduled_tokens, stats.prompt_tokens_computed + stats.recomputed_tokens + fed +
                                          stats.num_overrun + stats.drafted_tokens -
                                          stats.accepted_tokens)
        << "seed " << seed;
  }
  totals.beam_copies += stats.beam_copies;
  totals.scored += stats.scored_tokens;
  totals.accepted += stats.accepted_tokens;
  totals.refused += stats.drafted_tokens - stats.accepted_tokens;
  totals.preemptions += stats.num_preemptions;
  totals.recomputed += stats.recomputed_tokens;
  totals.cached += stats.prompt_tokens_cached;
  totals.copies += blocks.num_copies;
  totals.evictions += blocks.num_evictions;
  totals.overrun += stats.num_overrun;
  totals.deduplicated += blocks.num_deduplicated;
  totals.shifted += simulation.num_shifted_blocks;
}

void RunWorlds(int32_t depth, bool disturb) {
  Totals totals;
  const auto world = rc::gen::resize(rc::kNominalSize, rc::gen::inRange<uint32_t>(0, 1u << 31));
  // The same worlds in every run, so that each kind of event happens in at least one.
  for (uint32_t seed = 0; seed < 200; ++seed) RunWorld(seed, depth, disturb, totals);
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i < 2; ++i) RunWorld(*world, depth, disturb, totals);
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
  EXPECT_GT(totals.preemptions, 0);
  EXPECT_GT(totals.recomputed, 0);
  EXPECT_GT(totals.cached, 0);
  EXPECT_GT(totals.copies, 0);
  EXPECT_GT(totals.evictions, 0);
  EXPECT_GT(totals.forks, 0);
  EXPECT_GT(totals.deduplicated, 0);
  EXPECT_GT(totals.taken_away, 0);
  EXPECT_GT(totals.shifted, 0);
  EXPECT_GT(totals.scored, 0);
  if (!disturb) {
    EXPECT_GT(totals.searches, 0);
    EXPECT_GT(totals.searches_in_windows, 0);
  }
  EXPECT_GT(totals.beam_copies, 0);
  EXPECT_EQ(totals.accepted > 0, depth == 0);
  EXPECT_EQ(totals.refused > 0, depth == 0);
  EXPECT_EQ(totals.overrun > 0, depth > 0);
  EXPECT_EQ(totals.dropped > 0, disturb);
}

TEST(SchedulerPropertyTest, EveryRequestEndsWithItsOwnTokens) { RunWorlds(0, false); }
TEST(SchedulerPropertyTest, EveryRequestEndsWithItsOwnTokensInAPipeline) { RunWorlds(1, false); }
TEST(SchedulerPropertyTest, CancellationsStallsAndFailuresFreeEverything) { RunWorlds(0, true); }
TEST(SchedulerPropertyTest, CancellationsStallsAndFailuresFreeEverythingInAPipeline) {
  RunWorlds(1, true);
}

}  // namespace
}  // namespace quire::engine
