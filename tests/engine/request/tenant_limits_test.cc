#include "engine/request/tenant_limits.h"

#include <gtest/gtest.h>

namespace quire::engine {
namespace {

TEST(TenantLimitsTest, MostRunningSequences) {
  struct Case {
    TenantLimits limits;
    int32_t max_num_seqs, want;
  };
  const Case cases[] = {
      {{}, 64, 64},
      {{.max_running = 3}, 64, 3},
      {{.max_running = 65}, 64, 64},
      {{.max_running = 64, .leaves_places = true}, 64, 64},
      {{.leaves_places = true}, 64, 56},
      {{.leaves_places = true}, 256, 224},
      {{.leaves_places = true}, 15, 14},  // at least one
      {{.leaves_places = true}, 2, 1},
      {{.leaves_places = true}, 1, 1},
  };
  for (const auto& [limits, max_num_seqs, want] : cases) {
    EXPECT_EQ(MostRunning(limits, max_num_seqs), want)
        << limits.max_running << " of " << max_num_seqs;
  }
}

}  // namespace
}  // namespace quire::engine
