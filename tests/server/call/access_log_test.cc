#include "server/call/access_log.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::server {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

const absl::Time kStart = absl::FromUnixSeconds(1000);

// Returns the log lines of `num_calls` calls that end with `code` at `now`.
std::vector<std::string> Lines(AccessLog& log, absl::StatusCode code, int num_calls,
                               absl::Time now) {
  ::testing::internal::CaptureStderr();
  const engine::RequestSummary summary;
  const Principal alice{.name = "alice", .tenant = "search"};
  const EndedCall call{.caller = &alice,
                       .peer = "127.0.0.1:4711",
                       .request_id = "id",
                       .code = code,
                       .summary = &summary,
                       .total = now - kStart};
  for (int i = 0; i < num_calls; ++i) log.Ended(call, now);
  return absl::StrSplit(::testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty());
}

TEST(AccessLogTest, EveryCallThatSucceedsLeavesALine) {
  AccessLog log(AccessLogMode::kAll);
  const auto lines = Lines(log, absl::StatusCode::kOk, 100, kStart + absl::Milliseconds(20));
  ASSERT_EQ(lines.size(), 100u);
  EXPECT_THAT(lines[0],
              HasSubstr("INFO rpc: Generate request_id=\"id\" caller=\"alice\" tenant=\"search\" "
                        "peer=\"127.0.0.1:4711\" code=\"OK\""));
  EXPECT_THAT(lines[0], HasSubstr(" total_ms=20"));
}

TEST(AccessLogTest, OfCallsThatFailAlikeFewDoAndNoneIsForgotten) {
  AccessLog log(AccessLogMode::kAll);
  EXPECT_EQ(Lines(log, absl::StatusCode::kCancelled, 1000, kStart).size(), 10u);
  EXPECT_EQ(Lines(log, absl::StatusCode::kInternal, 1, kStart).size(), 1u) << "it is another code";
  EXPECT_EQ(Lines(log, absl::StatusCode::kOk, 20, kStart).size(), 20u);
  EXPECT_EQ(Lines(log, absl::StatusCode::kCancelled, 5, kStart + absl::Milliseconds(999)).size(),
            0u);
  const auto later = Lines(log, absl::StatusCode::kCancelled, 1, kStart + absl::Seconds(1));
  ASSERT_EQ(later.size(), 1u);
  EXPECT_THAT(later[0], HasSubstr(" rpc: Generate "));
  EXPECT_THAT(later[0], EndsWith(" lines_left_out=995"));
}

TEST(AccessLogTest, ModesLeaveOut) {
  AccessLog errors(ParseAccessLogMode("errors"));
  EXPECT_EQ(Lines(errors, absl::StatusCode::kOk, 5, kStart).size(), 0u);
  EXPECT_EQ(Lines(errors, absl::StatusCode::kInternal, 5, kStart).size(), 5u);
  AccessLog off(ParseAccessLogMode("off"));
  EXPECT_EQ(Lines(off, absl::StatusCode::kInternal, 5, kStart).size(), 0u);
}

}  // namespace
}  // namespace quire::server
