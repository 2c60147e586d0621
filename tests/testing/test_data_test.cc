#include "tests/testing/test_data.h"

#include <gtest/gtest.h>

#include "absl/strings/str_join.h"

namespace quire::testing {
namespace {

TEST(TestDataTest, NothingIsAbsent) {
  const std::vector<std::string> absent = AbsentTestData();
  if (absent.empty()) return;
  GTEST_SKIP() << "no tests of real files that are absent, see tests/testing/test_data.h: "
               << absl::StrJoin(absent, ", ");
}

// A part that is not listed would be left out without a word.
TEST(TestDataDeathTest, APartThatIsNotListedAborts) {
  EXPECT_DEATH(TestDataPath("models/unknown"), "models/unknown is in no part");
  EXPECT_DEATH(TestDataPath("text/udhr-old/eng.txt"), "is in no part");
  EXPECT_DEATH(FetchedModelPath("unknown"), "unknown is not listed");
}

}  // namespace
}  // namespace quire::testing
