#include "engine/runner/row_work.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using Kind = RowWork::Kind;

auto Draw(int32_t entry, int32_t row, int32_t sample) {
  return AllOf(Field(&RowWork::kind, Kind::kDraw), Field(&RowWork::entry, entry),
               Field(&RowWork::row, row), Field(&RowWork::sample, sample),
               Field(&RowWork::given, -1));
}

auto Given(Kind kind, int32_t entry, int32_t row, int32_t sample, int64_t index, int32_t given) {
  return AllOf(Field(&RowWork::kind, kind), Field(&RowWork::entry, entry),
               Field(&RowWork::row, row), Field(&RowWork::sample, sample),
               Field(&RowWork::index, index), Field(&RowWork::given, given));
}

class RowWorkTest : public ::testing::Test {
 protected:
  // Makes a sequence whose request has the prompt 10, 11, 12, 13, 14.
  Sequence MakeSequence() {
    Sequence sequence{.request = std::make_shared<Request>()};
    sequence.request->prompt_ids = {10, 11, 12, 13, 14};
    sequence.tokens = sequence.request->prompt_ids;
    return sequence;
  }
  const std::vector<RowWork>& Works(const std::vector<StepPlanEntry>& entries) {
    ListRowWork({.entries = entries}, works_);
    return works_;
  }

  std::vector<RowWork> works_{{.entry = 77}};  // of an earlier step
};

TEST_F(RowWorkTest, SamplesDrawFromTheLastRowOfTheirEntry) {
  Sequence decode = MakeSequence(), middle = MakeSequence(), prompt = MakeSequence();
  decode.sample_index = 3;
  decode.request->params.output.top_logprobs = 4;
  EXPECT_THAT(
      Works({{.sequence = &decode, .num_tokens = 1, .num_logit_rows = 1, .num_samples = 1},
             {.sequence = &middle, .num_tokens = 4},
             {.sequence = &prompt, .num_tokens = 5, .num_logit_rows = 1, .num_samples = 2}}),
      ElementsAre(Draw(0, 0, 3), Draw(2, 1, 0), Draw(2, 1, 1)));
  EXPECT_EQ(works_[0].num_top, 4);
  EXPECT_EQ(works_[0].token, 0);
  EXPECT_EQ(works_[2].token, 2);
  EXPECT_FALSE(works_[1].num_top.has_value());
}

TEST_F(RowWorkTest, ADraftIsVerifiedByTheRowBeforeIt) {
  Sequence first = MakeSequence(), second = MakeSequence();
  second.sample_index = 2;
  second.request->params.output.top_logprobs = 3;
  const StepPlan plan = {.entries = {{.sequence = &first,
                                      .first_index = 4,
                                      .num_tokens = 3,
                                      .num_logit_rows = 3,
                                      .num_samples = 1,
                                      .num_drafts = 2,
                                      .first_draft = 0},
                                     {.sequence = &second,
                                      .first_index = 4,
                                      .num_tokens = 2,
                                      .num_logit_rows = 2,
                                      .num_samples = 1,
                                      .num_drafts = 1,
                                      .first_draft = 2}},
                         .drafts = {20, 21, 22}};
  EXPECT_EQ(ListRowWork(plan, works_), 5);
  const auto last = [](int32_t entry, int32_t row, int32_t sample, int64_t index) {
    return AllOf(Draw(entry, row, sample), Field(&RowWork::index, index));
  };
  EXPECT_THAT(works_, ElementsAre(Given(Kind::kVerify, 0, 0, 0, 0, 20),
                                  Given(Kind::kVerify, 0, 1, 0, 1, 21), last(0, 2, 0, 2),
                                  Given(Kind::kVerify, 1, 3, 2, 0, 22), last(1, 4, 2, 1)));
  for (int32_t i = 0; i < 5; ++i) EXPECT_EQ(works_[i].token, i);
  EXPECT_EQ(works_[3].num_top, 3);
  // The token is drawn, whatever the draft is.
  const kernels::SampleRow row = MakeSampleRow(works_[1], *first.request, first.tokens, 1);
  EXPECT_EQ(row.given, -1);
  EXPECT_EQ(row.draw, 1);
  EXPECT_EQ(row.position, 1);
}

TEST_F(RowWorkTest, ARowOfThePromptGivesTheTokenAfterIt) {
  Sequence sequence = MakeSequence();
  sequence.request->params.output.prompt_logprobs = 2;
  // The step computes tokens 1 and 2 of the prompt.
  EXPECT_THAT(
      Works({{.sequence = &sequence, .first_index = 1, .num_tokens = 2, .num_logit_rows = 2}}),
      ElementsAre(Given(Kind::kPrompt, 0, 0, 0, 2, 12), Given(Kind::kPrompt, 0, 1, 0, 3, 13)));
  EXPECT_EQ(works_[0].num_top, 2);
  // The step computes tokens 3 and 4 of the prompt. No token of the prompt follows the last row.
  EXPECT_THAT(Works({{.sequence = &sequence,
                      .first_index = 3,
                      .num_tokens = 2,
                      .num_logit_rows = 2,
                      .num_samples = 1}}),
              ElementsAre(Given(Kind::kPrompt, 0, 0, 0, 4, 14), Draw(0, 1, 0)));
  // The step computes a token after the prompt.
  sequence.tokens.push_back(99);
  EXPECT_THAT(Works({{.sequence = &sequence,
                      .first_index = 5,
                      .num_tokens = 1,
                      .num_logit_rows = 1,
                      .num_samples = 1}}),
              ElementsAre(Draw(0, 0, 0)));
}

TEST_F(RowWorkTest, ContinuationsShareTheLastRowOfThePrompt) {
  Sequence first = MakeSequence(), second = MakeSequence();
  first.request->continuation_ids = {{20}, {21, 22, 23, 24}};
  EXPECT_THAT(
      Works({{.sequence = &first, .num_tokens = 5, .num_logit_rows = 1, .num_samples = 2}}),
      ElementsAre(Given(Kind::kScore, 0, 0, 0, 0, 20), Given(Kind::kScore, 0, 0, 1, 0, 21)));
  EXPECT_EQ(works_[0].num_top, 1);

  second.request = first.request;
  second.sample_index = 1;
  second.tokens.insert(second.tokens.end(), {21, 22, 23});
  // The step computes token 5, which has id 21. Its row scores the next token, 22.
  EXPECT_THAT(
      Works({{.sequence = &second, .first_index = 5, .num_tokens = 1, .num_logit_rows = 1}}),
      ElementsAre(Given(Kind::kScore, 0, 0, 1, 1, 22)));
  EXPECT_THAT(Works({{.sequence = &second,
                      .first_index = 4,  // computed again after a preemption; 4 has no row
                      .num_tokens = 4,
                      .num_logit_rows = 3,
                      .num_samples = 1}}),
              ElementsAre(Given(Kind::kScore, 0, 0, 1, 1, 22), Given(Kind::kScore, 0, 1, 1, 2, 23),
                          Given(Kind::kScore, 0, 2, 1, 3, 24)));
}

TEST_F(RowWorkTest, ADrawKnowsItsSeedPlaceAndTokens) {
  Sequence sequence = MakeSequence();
  Request& request = *sequence.request;
  request.seed = 1000;
  request.params.sampling.top_k = 7;
  request.params.sampling.logit_bias = {{.token_id = 3, .bias = 1.5f}};
  sequence.tokens.push_back(15);
  const kernels::SampleRow row =
      MakeSampleRow({.row = 4, .sample = 2, .num_top = 3}, request, sequence.tokens, 1);
  EXPECT_EQ(row.row, 4);
  EXPECT_EQ(row.given, -1);
  EXPECT_EQ(row.num_top, 3);
  EXPECT_EQ(row.params.top_k, 7);
  EXPECT_EQ(row.seed, 1002u) << "sample k of n draws like a single request with seed + k";
  EXPECT_EQ(row.position, 1);
  EXPECT_EQ(row.biases.data(), request.params.sampling.logit_bias.data());
  EXPECT_EQ(row.allowed, &request.allowed_ids);
  EXPECT_EQ(row.tokens.data(), sequence.tokens.data());
  EXPECT_EQ(row.prompt_len, 5);
}

TEST_F(RowWorkTest, IdsThatEndTheOutputAreBannedBeforeMinTokens) {
  Sequence sequence = MakeSequence();
  Request& request = *sequence.request;
  request.params.stop.min_tokens = 2;
  const auto row_at = [&](int64_t num_generated) {
    return MakeSampleRow({}, request, sequence.tokens, num_generated);
  };
  EXPECT_TRUE(row_at(0).bans_end_ids);
  EXPECT_EQ(row_at(1).banned, &request.stop_ids);
  EXPECT_FALSE(row_at(2).bans_end_ids);
  EXPECT_EQ(row_at(2).banned, nullptr);
  request.params.stop.ignore_eos = true;
  EXPECT_FALSE(row_at(1).bans_end_ids) << "they would not end the output";
  EXPECT_EQ(row_at(1).banned, &request.stop_ids);
}

TEST_F(RowWorkTest, AGivenTokenIsNotDrawn) {
  const Sequence sequence = MakeSequence();
  const kernels::SampleRow row =
      MakeSampleRow({.kind = Kind::kPrompt, .row = 3, .num_top = 0, .given = 12}, *sequence.request,
                    sequence.tokens, 0);
  EXPECT_EQ(row.row, 3);
  EXPECT_EQ(row.given, 12);
  EXPECT_EQ(row.num_top, 0);
}

}  // namespace
}  // namespace quire::engine
