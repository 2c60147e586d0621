#include "base/metrics.h"

#include "gtest/gtest.h"

namespace quire::base {
namespace {

TEST(LatencyHistogramTest, ABoundBelongsToItsBucket) {
  LatencyHistogram histogram;
  histogram.Observe(0.0);
  histogram.Observe(LatencyHistogram::kBounds.front());
  histogram.Observe(LatencyHistogram::kBounds.front() * 1.0001);
  histogram.Observe(1e9);
  EXPECT_EQ(histogram.count(0), 2u);
  EXPECT_EQ(histogram.count(1), 1u);
  EXPECT_EQ(histogram.count(LatencyHistogram::kBounds.size()), 1u);
  EXPECT_GT(histogram.sum(), 1e9 - 1);
}

TEST(CounterTest, AddsAndSets) {
  Counter counter;
  counter.Add(2);
  counter.Add(3);
  EXPECT_EQ(counter.value(), 5);
  counter.Set(1);
  EXPECT_EQ(counter.value(), 1);
}

}  // namespace
}  // namespace quire::base
