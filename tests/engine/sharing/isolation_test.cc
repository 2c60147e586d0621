// Tests that no tenant observes the prefixes of another one, by counts or by time. Time is counted
// in steps, tokens and copies, which do not depend on the machine.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/testing/engine_harness.h"
#include "tests/testing/fake_clock.h"

namespace quire::engine {
namespace {

using testing::CollectingSink;
using testing::EngineHarness;
using testing::FakeClock;
using testing::GreedyParams;
using testing::RandomIds;

// What a tenant can see of a request, and the work that decides how long it takes.
struct Seen {
  int64_t cached_tokens = 0;
  int64_t computed_tokens = 0;  // of prompts
  int64_t steps = 0;
  int64_t steps_to_first = 0;  // until the first token
  int64_t rows = 0;            // tokens that the model computed
  int64_t copies = 0;
  int64_t followers = 0;  // waits for tokens of others

  bool operator==(const Seen&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Seen& seen) {
    return out << "cached " << seen.cached_tokens << ", computed " << seen.computed_tokens
               << ", steps " << seen.steps << ", to first " << seen.steps_to_first << ", rows "
               << seen.rows << ", copies " << seen.copies << ", followers " << seen.followers;
  }
};

class IsolationTest : public ::testing::Test {
 protected:
  IsolationTest() {
    engine_ = EngineHarness::Stepped(
        {.num_blocks = 4096, .max_num_batched_tokens = 128, .clock = &clock_}, &model_);
  }

  std::shared_ptr<CollectingSink> Submit(const std::string& tenant, TokenIds ids) {
    GenerateParams params = GreedyParams(std::move(ids), 3);
    params.sched.tenant = tenant;
    auto sink = std::make_shared<CollectingSink>();
    const auto handle = engine_->Submit(std::move(params), sink);
    EXPECT_TRUE(handle.ok()) << handle.status();
    if (handle.ok()) handles_.push_back(*handle);
    engine_->RunFrontend();
    return sink;
  }
  void RunUntilIdle() {
    while (engine_->Step()) {
    }
  }
  // Runs a request of the tenant `observer`. If `beside` is not empty, a request of a tenant of its
  // own with these tokens is submitted just before, so that it is computed at the same time.
  Seen Observe(const std::string& observer, const TokenIds& ids, const TokenIds& beside = {}) {
    const Stats before = engine_->stats();
    const int64_t rows = model_->num_tokens;
    if (!beside.empty()) Submit(observer + "'s victim", beside);
    const auto sink = Submit(observer, ids);
    Seen seen;
    while (!sink->finished() && engine_->Step()) {
      if (sink->sample(0).token_ids.empty()) ++seen.steps_to_first;
    }
    RunUntilIdle();
    EXPECT_TRUE(sink->status().ok()) << sink->status();
    const Stats after = engine_->stats();
    seen.cached_tokens = sink->summary().usage.cached_tokens;
    seen.computed_tokens = after.prompt_tokens_computed - before.prompt_tokens_computed;
    seen.steps = after.steps - before.steps;
    seen.rows = model_->num_tokens - rows;
    seen.copies = after.block_copies - before.block_copies;
    for (size_t i = 0; i < after.followers.size(); ++i) {
      seen.followers += after.followers[i] - before.followers[i];
    }
    handles_.clear();
    return seen;
  }

  FakeClock clock_;
  testing::FakeModel* model_ = nullptr;
  std::unique_ptr<SteppedEngine> engine_;
  std::vector<std::shared_ptr<SubmittedRequest>> handles_;
};

// QUIRE_ISOLATION_PROMPTS: the number of pairs, if not the small default.
int NumPairs() {
  const char* const given = std::getenv("QUIRE_ISOLATION_PROMPTS");
  return given == nullptr ? 60 : std::atoi(given);
}

TEST_F(IsolationTest, PromptsThatAnotherTenantHasCachedAreLikeThoseNeverSeen) {
  for (int i = 0; i < NumPairs(); ++i) {
    const int64_t size = 40 + 13 * (i % 20);
    const auto seed = static_cast<uint32_t>(3 * i);
    const TokenIds foreign = RandomIds(size, seed + 1);
    Submit("victim", foreign);
    RunUntilIdle();
    // Each looks with an empty cache of its own.
    const std::string first = std::to_string(2 * i), second = std::to_string(2 * i + 1);
    const Seen cached = Observe(first, foreign);
    ASSERT_EQ(cached, Observe(second, RandomIds(size, seed + 2))) << size << " tokens";
    ASSERT_EQ(cached.cached_tokens, 0);
    ASSERT_EQ(cached.computed_tokens, size);
    ASSERT_NE(cached, Observe(first, foreign)) << "what a tenant has cached itself shows";
  }
}

TEST_F(IsolationTest, PromptsThatAnotherTenantComputesNowAreLikeThoseNeverSeen) {
  for (int i = 0; i < NumPairs(); ++i) {
    const int64_t size = 40 + 13 * (i % 20);
    const auto seed = static_cast<uint32_t>(4 * i);
    const TokenIds beside = RandomIds(size, seed + 1);
    const std::string first = std::to_string(2 * i), second = std::to_string(2 * i + 1);
    const Seen same = Observe(first, beside, beside);
    ASSERT_EQ(same, Observe(second, RandomIds(size, seed + 2), RandomIds(size, seed + 3)));
    ASSERT_EQ(same.followers, 0);
  }
}

}  // namespace
}  // namespace quire::engine
