#include "engine/output/token_stops.h"

#include <vector>

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

const std::vector<int32_t> kEndIds = {2, 7};

FinishReason Reason(const Request& request, int32_t id, int64_t num_generated) {
  const TokenVerdict verdict = CheckTokenStops(request, kEndIds, id, num_generated);
  EXPECT_EQ(verdict.stop_token_id.has_value(), verdict.finish_reason == FinishReason::kStop);
  EXPECT_EQ(verdict.stop_token_id.value_or(id), id);
  return verdict.finish_reason;
}

TEST(TokenStopsTest, StopsAtEndAndStopTokens) {
  Request request;
  request.max_tokens = 10;
  request.stop_ids = kernels::TokenSet(std::vector<int32_t>{5}, 10);
  EXPECT_EQ(Reason(request, 3, 1), FinishReason::kNone);
  EXPECT_EQ(Reason(request, 2, 1), FinishReason::kStop);
  EXPECT_EQ(Reason(request, 7, 1), FinishReason::kStop);
  EXPECT_EQ(Reason(request, 5, 1), FinishReason::kStop);
}

TEST(TokenStopsTest, IgnoresEosButNotStopTokensWhenAsked) {
  Request request;
  request.max_tokens = 10;
  request.params.stop.ignore_eos = true;
  request.stop_ids = kernels::TokenSet(std::vector<int32_t>{7}, 10);
  EXPECT_EQ(Reason(request, 2, 1), FinishReason::kNone);
  EXPECT_EQ(Reason(request, 7, 1), FinishReason::kStop);
}

TEST(TokenStopsTest, StopsAtTheLength) {
  Request request;
  request.max_tokens = 3;
  EXPECT_EQ(Reason(request, 3, 2), FinishReason::kNone);
  EXPECT_EQ(Reason(request, 3, 3), FinishReason::kLength);
  EXPECT_EQ(Reason(request, 2, 3), FinishReason::kStop) << "an end token wins over the length";
}

TEST(TokenStopsTest, GoesOnWithinMinTokens) {
  Request request;
  request.max_tokens = 5;
  request.params.stop.min_tokens = 2;
  EXPECT_TRUE(request.params.stop.must_go_on(1));
  EXPECT_FALSE(request.params.stop.must_go_on(2));
  EXPECT_EQ(Reason(request, 2, 2), FinishReason::kNone);
  EXPECT_EQ(Reason(request, 2, 3), FinishReason::kStop);
}

}  // namespace
}  // namespace quire::engine
