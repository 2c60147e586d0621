// Tests that what is fair between tenants changes nothing where there is one: the plans of random
// worlds with one tenant hash to what they did before tenants were compared.

#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

#include "engine/scheduler/scheduler.h"
#include "tests/engine/scheduler/simulation.h"

namespace quire::engine {
namespace {

struct PlanHash {
  uint64_t digest = 0xcbf29ce484222325u;  // FNV-1a over all numbers of all plans
  int64_t entries = 0;
  int64_t preemptions = 0;
  int64_t dropped = 0;

  void Add(int64_t value) { digest = (digest ^ static_cast<uint64_t>(value)) * 0x100000001b3u; }
};

// Runs one world, with plans of all kinds. No step has fewer rows of logits than tokens, so no
// sequence that could start lacks rows.
void HashWorld(uint32_t seed, int32_t depth, PlanHash& hash) {
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint32_t>(high - low + 1));
  };
  SimulationConfig config{.num_blocks = pick(8, 40), .block_size = pick(2, 6)};
  const int32_t max_num_seqs = pick(1, 8);
  config.scheduler = {.max_num_seqs = max_num_seqs,
                      .max_num_batched_tokens = max_num_seqs + pick(0, 24),
                      .max_logit_rows = 1000,
                      .max_draft_tokens = depth == 0 ? pick(0, 4) : 0,
                      .pipeline_depth = depth,
                      .headroom_blocks = pick(0, 2),
                      .starts_per_oldest = pick(1, 8)};
  if (const int limit = pick(0, 9); limit > 0) {
    config.scheduler.prefill_limit = [limit](int32_t) { return limit; };
  }
  const bool has_windows = pick(0, 4) == 0;
  if (has_windows) config.patterns = {kernels::AttentionPattern::Window(pick(1, 12))};
  Simulation simulation(config);
  const int capacity = config.num_blocks * config.block_size;
  std::vector<std::pair<SequenceId, RequestSpec>> added;
  const int num_requests = pick(4, 24);
  int num_added = 0;
  for (int step = 0; num_added < num_requests || simulation.scheduler().HasWork(); ++step) {
    ASSERT_LT(step, 20000) << "seed " << seed;
    if (num_added < num_requests && pick(0, 2) == 0) {
      ++num_added;
      // Compilers differ in the order in which they evaluate arguments and operands.
      const int32_t first = pick(0, 3);
      const auto any_or_none = [&](int low, int high) {
        const int any = pick(0, 1);
        return any * pick(low, high);
      };
      RequestSpec spec{.prompt = Prompt(pick(1, capacity / 2), first),
                       .max_tokens = pick(1, capacity / 3),
                       .seed = static_cast<uint64_t>(pick(0, 3)),
                       .stop_one_in = any_or_none(4, 40),
                       .priority = pick(-1, 1),
                       .tenant = "only",
                       .limits = {.max_blocks = pick(0, 3) == 0 ? pick(1, config.num_blocks) : 0,
                                  .share = pick(1, 3)},
                       .prompt_logprobs = pick(0, 5) == 0};
      const int kind = pick(0, 5);
      if (kind == 0) spec.n = pick(1, max_num_seqs);
      if (kind == 1 && !spec.prompt_logprobs) {
        spec.n = pick(1, max_num_seqs);
        spec.stop_one_in = 0;
        for (int k = 0; k < spec.n; ++k) {
          spec.continuations.push_back(
              Prompt(k == 0 ? spec.max_tokens : 1 + k % spec.max_tokens, 50 * k));
        }
      }
      if (kind == 2 && !spec.prompt_logprobs && !has_windows && max_num_seqs > 1) {
        const int32_t width = pick(2, max_num_seqs);
        const int64_t most =
            MaxNewTokens(config.num_blocks, config.block_size, std::ssize(spec.prompt), width);
        if (most > 0) {
          spec.beam_width = width;
          spec.max_tokens = static_cast<int32_t>(std::min<int64_t>(spec.max_tokens, most));
        }
      }
      if (pick(0, 9) == 0) spec.deadline = simulation.now + absl::Milliseconds(pick(1, 200));
      added.emplace_back(simulation.Add(spec), spec);
    }
    if (!added.empty() && pick(0, 3) == 0) {
      const auto& [id, spec] = added[pick(0, static_cast<int>(added.size()) - 1)];
      const int what = pick(0, 9);
      if (what == 0) simulation.Cancel(id);
      if (what == 1) simulation.sink(id).room = pick(0, spec.n);
      if (what > 1) simulation.sink(id).room = 1 << 20;
    }
    simulation.now += absl::Milliseconds(1);
    const bool any = simulation.Step();
    for (const StepPlanEntry& entry : simulation.last_plan().entries) {
      ++hash.entries;
      for (const int64_t value :
           {entry.first_index, entry.first_position, int64_t{entry.num_tokens},
            int64_t{entry.num_logit_rows}, int64_t{entry.num_samples}, int64_t{entry.num_drafts},
            int64_t{entry.first_draft}, int64_t{entry.token_from_previous}}) {
        hash.Add(value);
      }
    }
    for (const SequenceId id : simulation.planned()) hash.Add(id);
    for (const int32_t draft : simulation.last_plan().drafts) hash.Add(draft);
    for (const kernels::BlockCopy& copy : simulation.last_plan().copies) {
      hash.Add(copy.source);
      hash.Add(copy.destination);
    }
    hash.Add(std::ssize(simulation.ended()));
    if (!any && simulation.scheduler().HasWork()) simulation.now += absl::Seconds(31);
  }
  for (const auto& [id, ended] : simulation.ended()) {
    hash.Add(static_cast<int64_t>(ended.cause));
    hash.Add(ended.sequence.num_cached);
    hash.dropped += ended.cause == EndCause::kFinished ? 0 : 1;
  }
  hash.preemptions += simulation.scheduler().stats().num_preemptions;
}

// A change that is meant to alter the plans of one tenant alters the digest as well. Then the test
// prints the new one.
TEST(OneTenantTest, PlansAreThoseOfASchedulerWithoutTenants) {
  for (const auto& [depth, digest] :
       {std::pair(0, 0x612aaa38ccd6da60u), {1, 0xce8208abc86237f4u}}) {
    PlanHash hash;
    for (uint32_t seed = 0; seed < 300; ++seed) HashWorld(seed, depth, hash);
    EXPECT_GT(hash.entries, 50000);
    EXPECT_GT(hash.preemptions, 400);
    EXPECT_GT(hash.dropped, 100);
    EXPECT_EQ(hash.digest, digest) << "depth " << depth << ": 0x" << std::hex << hash.digest;
  }
}

}  // namespace
}  // namespace quire::engine
