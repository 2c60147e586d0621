// Tests the CPU backend's op Sample. tests/kernels/sampling/ tests its sampler.

#include "kernels/ops/sample.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/kernels/kernel_testing.h"
#include "tests/kernels/sample_testing.h"

namespace quire::kernels {
namespace {

using testing::F32;
using ::testing::HasSubstr;
using testing::I32;
using testing::MakeBackend;
using testing::Owned;
using testing::TwoCalls;

TEST(SampleTest, TheSecondCallGoesOnFromTheFirst) {
  const auto backend = MakeBackend("auto");
  const TwoCalls calls = testing::SampleTwice(*backend, 301);
  // A given token is the result, and it is not in `drawn`.
  std::vector<int32_t> ids;
  for (size_t i = 0; i < calls.second.size(); ++i) {
    if (i != 3) ids.push_back(calls.second[i].id);
  }
  EXPECT_EQ(calls.first[3].id, 12);
  ids.resize(calls.drawn.size());  // the elements that no row draws stay 0
  EXPECT_EQ(calls.drawn, ids);
}

TEST(SampleTest, ThreadsDoNotMatter) {
  const TwoCalls alone = testing::SampleTwice(*MakeBackend("auto", 1), 301);
  for (const int num_threads : {2, 3}) {
    const auto backend = MakeBackend("auto", num_threads);
    // On a busy machine, the calling thread may do all work of one call.
    for (int i = 0; i < 400; ++i) {
      const TwoCalls calls = testing::SampleTwice(*backend, 301);
      ASSERT_EQ(ToText(calls), ToText(alone));
      ASSERT_EQ(calls.drawn, alone.drawn);
    }
  }
}

TEST(SampleTest, AnErrorIsOfItsRowAlone) {
  const auto backend = MakeBackend("auto");
  const auto sampler = *backend->PrepareSampler({.vocab_size = 3, .max_rows = 3, .max_draws = 3});
  const float infinity = std::numeric_limits<float>::infinity();
  const Owned<float> logits = F32({3, 3}, {1, 2, 3, 1, infinity, 3, 3, 2, 1});
  Owned<int32_t> drawn = I32({3}, {7, 7, 7});
  const TokenSet none(std::vector<int32_t>{0, 1, 2}, 3);
  const DrawParams greedy = {.temperature = 0.0f};
  const std::vector<SampleRow> rows = {
      {.row = 0, .draw = 2, .params = greedy},
      {.row = 1, .draw = 0, .params = greedy},
      {.row = 2, .draw = 1, .params = greedy, .banned = &none},
      {.row = 2, .given = 1, .num_top = 0},
  };
  std::vector<absl::StatusOr<SampledRow>> results(9);  // of a call before
  ASSERT_TRUE(
      backend
          ->Sample(
              {.logits = logits.view, .rows = rows, .drawn = drawn.view, .sampler = sampler.get()})
          .ok());
  sampler->Take(results);
  ASSERT_EQ(results.size(), 4u);
  EXPECT_EQ(results[0]->id, 2);
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(results[2].status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(results[3]->id, 1);
  EXPECT_THAT(drawn.values, ::testing::ElementsAre(0, 0, 2)) << "0 where the draw fails";
}

TEST(SampleTest, RefusesBadArguments) {
  const auto backend = MakeBackend("auto");
  const auto sampler = *backend->PrepareSampler({.vocab_size = 3, .max_rows = 2, .max_draws = 2});
  const Owned<float> logits = F32({2, 3}, {1, 2, 3, 3, 2, 1});
  const Owned<int32_t> drawn = I32({2}, {7, 7});
  const auto refused = [&](SampleRow row, const std::function<void(SampleArgs&)>& spoil) {
    SampleArgs args = {
        .logits = logits.view, .rows = {&row, 1}, .drawn = drawn.view, .sampler = sampler.get()};
    spoil(args);
    const absl::Status status = backend->Sample(args);
    std::vector<absl::StatusOr<SampledRow>> results;
    if (status.ok()) sampler->Take(results);
    return std::string(status.message());
  };
  const auto keep = [](SampleArgs&) {};
  EXPECT_EQ(refused({.row = 1, .draw = 1, .previous = 1}, keep), "");
  EXPECT_EQ(refused({.row = 1, .given = 2}, keep), "");
  EXPECT_THAT(refused({.row = 2, .draw = 0}, keep), HasSubstr("rows.row: want [0, 2), got 2"));
  EXPECT_THAT(refused({.row = -1, .given = 0}, keep), HasSubstr("rows.row"));
  EXPECT_THAT(refused({.draw = 2}, keep), HasSubstr("rows.draw: want [0, 2), got 2"));
  EXPECT_THAT(refused({}, keep), HasSubstr("rows.draw: want [0, 2), got -1"));
  EXPECT_THAT(refused({.draw = 0, .previous = 2}, keep), HasSubstr("rows.previous: want [-1, 2)"));
  const SampleRow good = {.draw = 0};
  EXPECT_THAT(refused(good, [&](SampleArgs& args) { args.logits = drawn.view; }),
              HasSubstr("logits: want f32 [*, *]"));
  EXPECT_THAT(refused(good, [&](SampleArgs& args) { args.drawn = logits.view; }),
              HasSubstr("drawn: want int32 [*]"));
  EXPECT_THAT(refused(good, [&](SampleArgs& args) { args.sampler = nullptr; }),
              HasSubstr("sampler"));
  EXPECT_THAT(refused({.given = 0, .num_top = 21}, keep),
              HasSubstr("rows.num_top: want [0, 21), got 21"));
}

}  // namespace
}  // namespace quire::kernels
