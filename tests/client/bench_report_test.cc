#include "client/bench_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace quire::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Returns the record of a request sent at 1 s whose three tokens came at 1.1, 1.2 and 1.4 s.
RequestRecord OkRecord() {
  RequestRecord record;
  record.code = absl::StatusCode::kOk;
  record.arrival = absl::Seconds(1);
  record.first_token = absl::Milliseconds(1100);
  record.last_token = absl::Milliseconds(1400);
  record.end = absl::Milliseconds(1500);
  record.num_tokens = 3;
  record.prompt_tokens = 10;
  record.cached_tokens = 9;
  record.gaps = {0.1f, 0.2f};
  return record;
}

TEST(DistributionTest, PercentilesInterpolate) {
  std::vector<double> values;
  for (int i = 100; i >= 0; --i) values.push_back(i);
  const Distribution d = Summarize(values);
  EXPECT_EQ(d.count, 101u);
  EXPECT_DOUBLE_EQ(d.mean, 50);
  EXPECT_DOUBLE_EQ(d.p50, 50);
  EXPECT_DOUBLE_EQ(d.p90, 90);
  EXPECT_DOUBLE_EQ(d.p99, 99);
  EXPECT_DOUBLE_EQ(d.max, 100);
  const Distribution two = Summarize({1, 2});
  EXPECT_DOUBLE_EQ(two.p50, 1.5);
  EXPECT_DOUBLE_EQ(two.p90, 1.9);
}

TEST(DistributionTest, OfOneAndOfNone) {
  EXPECT_DOUBLE_EQ(Summarize({7}).p99, 7);
  EXPECT_EQ(Summarize({}).count, 0u);
}

TEST(BenchReportTest, TimesOfOneRequest) {
  const BenchReport report = MakeReport({OkRecord()}, absl::Seconds(2));
  EXPECT_EQ(report.num_ok, 1u);
  EXPECT_DOUBLE_EQ(report.ttft.p50, 0.1);
  EXPECT_DOUBLE_EQ(report.tpot.p50, 0.15);
  EXPECT_FLOAT_EQ(static_cast<float>(report.gap.max), 0.2f);
  EXPECT_DOUBLE_EQ(report.latency.max, 0.5);
  EXPECT_DOUBLE_EQ(report.output_tokens_per_second, 1.5);
  EXPECT_EQ(report.prompt_tokens, 10u);
  EXPECT_EQ(report.cached_tokens, 9u);
}

TEST(BenchReportTest, CountsEndsApart) {
  RequestRecord refused;
  refused.code = absl::StatusCode::kResourceExhausted;
  RequestRecord dropped = OkRecord();
  dropped.code = absl::StatusCode::kCancelled;
  dropped.dropped = true;
  RequestRecord one_token = OkRecord();
  one_token.num_tokens = 1;
  one_token.gaps.clear();
  const BenchReport report =
      MakeReport({OkRecord(), refused, refused, dropped, one_token}, absl::Seconds(1));
  EXPECT_EQ(report.num_ok, 2u);
  EXPECT_EQ(report.num_dropped, 1u);
  EXPECT_THAT(report.failures, ElementsAre(Pair("RESOURCE_EXHAUSTED", 2u)));
  EXPECT_EQ(report.output_tokens, 7u);
  EXPECT_EQ(report.ttft.count, 3u);  // a refused request has no first token
  // `latency` counts the requests that ended with OK. `tpot` counts only the ones among them that
  // have at least two tokens.
  EXPECT_EQ(report.tpot.count, 1u);
  EXPECT_EQ(report.latency.count, 2u);
}

TEST(BenchReportTest, PrintsWhatItHolds) {
  BenchReport report = MakeReport({OkRecord()}, absl::Seconds(2));
  report.server["generated"] = 3;
  EXPECT_THAT(FormatReport(report),
              AllOf(HasSubstr("1 ok, 0 cancelled by the load"), HasSubstr("generated +3"),
                    HasSubstr("TTFT"), HasSubstr("100.00")));
  const nlohmann::json json = ToJson(report);
  EXPECT_EQ(json["num_ok"], 1);
  EXPECT_EQ(json["ttft_seconds"]["count"], 1);
  EXPECT_EQ(json["server"]["generated"], 3);
  EXPECT_THAT(FormatReport(MakeReport({}, absl::ZeroDuration())), HasSubstr("none"));
}

}  // namespace
}  // namespace quire::client
