#include "engine/scheduler/prompt_lookup.h"

#include <random>
#include <rapidcheck.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Tokens = std::vector<int32_t>;

Tokens Draft(const Tokens& tokens, int32_t most) {
  PromptLookup lookup;
  Tokens drafts;
  const int32_t num_drafts = lookup.Draft(tokens, most, drafts);
  EXPECT_EQ(num_drafts, std::ssize(drafts));
  return drafts;
}

TEST(PromptLookupTest, DraftsWhatFollowedTheSameThreeTokens) {
  EXPECT_THAT(Draft({1, 2, 3, 4, 5, 6, 1, 2, 3}, 2), ElementsAre(4, 5));
  EXPECT_THAT(Draft({9, 2, 3, 4, 5, 6, 1, 2, 3}, 2), IsEmpty());  // only two tokens are the same
  EXPECT_THAT(Draft({1, 2, 3}, 2), IsEmpty());
  EXPECT_THAT(Draft({}, 2), IsEmpty());
}

TEST(PromptLookupTest, TheLatestOccurrenceCounts) {
  EXPECT_THAT(Draft({1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3}, 1), ElementsAre(5));
}

TEST(PromptLookupTest, ALoopGoesOn) {
  EXPECT_THAT(Draft({7, 7, 7, 7}, 5), ElementsAre(7, 7, 7, 7, 7));
  EXPECT_THAT(Draft({1, 2, 1, 2, 1}, 4), ElementsAre(2, 1, 2, 1));
}

// The first calls read a long prompt in parts.
TEST(PromptLookupTest, ALongPromptIsReadInSeveralCalls) {
  Tokens tokens;
  for (int32_t i = 0; i < 9000; ++i) tokens.push_back(i);
  tokens.insert(tokens.end(), {5, 6, 7});
  PromptLookup lookup;
  Tokens drafts;
  for (const int32_t want : {0, 0, 2}) EXPECT_EQ(lookup.Draft(tokens, 2, drafts), want);
  EXPECT_THAT(drafts, ElementsAre(8, 9));
}

TEST(PromptLookupTest, AppendsToTheDraftsOfOthers) {
  PromptLookup lookup;
  Tokens drafts = {50, 51};
  EXPECT_EQ(lookup.Draft(Tokens{7, 7, 7, 7}, 2, drafts), 2);
  EXPECT_THAT(drafts, ElementsAre(50, 51, 7, 7));
}

// A sequence grows by several tokens between calls, past several sizes of the table. A full table
// may miss a match, but never gives an older one than the search.
TEST(PromptLookupTest, EqualsASearchFromTheEnd) {
  int num_found = 0, num_forgotten = 0;
  EXPECT_TRUE(rc::check([&] {
    std::mt19937 random(*rc::gen::arbitrary<uint32_t>());
    const int num_ids = 2 + static_cast<int>(random() % 6);
    PromptLookup lookup;
    Tokens tokens;
    while (tokens.size() < 1200) {
      for (unsigned i = 1 + random() % 9; i > 0; --i) {
        tokens.push_back(static_cast<int32_t>(random() % num_ids));
      }
      const int32_t most = 1 + static_cast<int32_t>(random() % 6);
      Tokens want;
      const int64_t size = std::ssize(tokens);
      for (int64_t end = size - 1; end >= PromptLookup::kMatched && want.empty(); --end) {
        if (!std::equal(tokens.end() - PromptLookup::kMatched, tokens.end(),
                        tokens.begin() + end - PromptLookup::kMatched)) {
          continue;
        }
        Tokens all = tokens;
        for (int32_t i = 0; i < most; ++i) all.push_back(all[static_cast<size_t>(end + i)]);
        want.assign(all.begin() + size, all.end());
      }
      Tokens drafts;
      const int32_t num_drafts = lookup.Draft(tokens, most, drafts);
      RC_ASSERT(num_drafts == std::ssize(drafts));
      RC_ASSERT(drafts.empty() || drafts == want);
      num_found += drafts.empty() ? 0 : 1;
      num_forgotten += drafts.empty() && !want.empty() ? 1 : 0;
    }
  }));
  EXPECT_LT(1000 * num_forgotten, num_found);
}

}  // namespace
}  // namespace quire::engine
