// Runs BlockManager with all its operations at random against naive models; see KvWorld.

#include <cstdio>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

#include "tests/engine/kv/kv_world.h"

namespace quire::engine {
namespace {

// Operations, and what may come of them.
// clang-format off
constexpr const char* kMustHappen[] = {
    "append", "append to beams", "beam copy", "beam that moved", "beams do not fit",
    "beams in windows", "beams lack places in windows", "beams wait", "become beams", "begin of a load", "cancel", "cancel of beams", "commit later",
    "commit together", "discard", "evict", "expire", "finish", "finish of beams", "fork",
    "fork of a pin", "held by several tenants", "hit behind a pin", "hit on a pin",
    "load that does not fit", "match", "offer", "pin", "pin in vain", "preempt",
    "preempt in a step", "preempt in a step of beams", "preempt of beams",
    "read of what was restored", "reorder", "restore", "restore in part", "restore of nothing",
    "shift", "spill", "start", "start on a pin", "unpin", "withdraw", "withdraw before the copy",
    "write"};
// clang-format on

// QUIRE_PIN_OPERATIONS: the number of operations, if not the small default.
TEST(PinsPropertyTest, RandomOperationsAgreeWithANaiveModel) {
  const char* given = std::getenv("QUIRE_PIN_OPERATIONS");
  const int64_t wanted = given == nullptr ? 30000 : std::atoll(given);
  KvWorld::Totals totals;
  for (uint32_t seed = 1; totals.operations < wanted; ++seed) {
    KvWorld world(seed, totals);
    world.Run(150);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  for (const char* const what : kMustHappen) {
    EXPECT_GT(totals.counts[what], 0) << what;
  }
  for (const auto& [what, count] : totals.counts) {
    RecordProperty(what, std::to_string(count));
    if (given != nullptr) printf("%9ld %s\n", static_cast<long>(count), what.c_str());
  }
}

}  // namespace
}  // namespace quire::engine
