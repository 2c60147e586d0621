#include "engine/output/output_processor.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <rapidcheck.h>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/testing/fake_tokenizer.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const TokenVerdict kGoOn;
const TokenVerdict kFull = {.finish_reason = FinishReason::kLength};

class OutputProcessorTest : public ::testing::Test {
 protected:
  // The ids of the pieces of the tokenizer.
  static constexpr int32_t kHello = 256, kSt = 257, kOp = 258, kHalfEuro = 259, kRestOfEuro = 260;

  GenerateParams& params() { return request_->params; }
  void Add() { processor_.Add(kFirst, request_); }
  Output Push(int32_t id, const TokenVerdict& verdict = kGoOn, SequenceId sequence = kFirst) {
    return processor_.Push(sequence, {.id = id}, verdict);
  }
  TokenVerdict StopsAt(int32_t id) {
    return {.finish_reason = FinishReason::kStop, .stop_token_id = id};
  }

  static constexpr SequenceId kFirst = 10;
  testing::FakeTokenizer tokenizer_{{"Hello", "ST", "OP", "\xE2\x82", "\xAC"}};
  OutputProcessor processor_{tokenizer_};
  std::shared_ptr<Request> request_ = std::make_shared<Request>();
};

TEST_F(OutputProcessorTest, TextComesWithItsToken) {
  request_->seed = 77;
  Add();
  const Output first = Push(kHello);
  EXPECT_TRUE(first.has_content);
  EXPECT_EQ(first.delta.text, "Hello");
  EXPECT_EQ(first.delta.seed, 77u);
  EXPECT_THAT(first.delta.token_ids, IsEmpty()) << "not asked for";
  EXPECT_EQ(first.delta.finish_reason, FinishReason::kNone);
  const Output last = Push('!', kFull);
  EXPECT_EQ(last.delta.text, "!");
  EXPECT_EQ(last.delta.finish_reason, FinishReason::kLength);
}

TEST_F(OutputProcessorTest, HalfACharacterWaits) {
  Add();
  const Output half = Push(kHalfEuro);
  EXPECT_FALSE(half.has_content);
  EXPECT_EQ(Push(kRestOfEuro).delta.text, "\xE2\x82\xAC");
  EXPECT_EQ(Push(kHalfEuro, kFull).delta.text, "\xEF\xBF\xBD") << "an end in mid-character";
}

TEST_F(OutputProcessorTest, AStopStringAcrossTokensIsNeverSeen) {
  params().stop.stop = {"STOP"};
  params().output.token_ids = true;
  Add();
  EXPECT_EQ(Push(kHello).delta.text, "Hello");
  const Output held = Push(kSt);
  EXPECT_EQ(held.delta.text, "");
  EXPECT_TRUE(held.has_content) << "its id goes out at once";
  EXPECT_THAT(held.delta.token_ids, ElementsAre(kSt));
  const Output stopped = Push(kOp);
  EXPECT_EQ(stopped.delta.text, "");
  EXPECT_EQ(stopped.delta.finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped.delta.stop_string, "STOP");
  EXPECT_EQ(stopped.delta.stop_token_id, std::nullopt);
  EXPECT_THAT(stopped.delta.token_ids, ElementsAre(kOp));
}

TEST_F(OutputProcessorTest, HeldTextIsReleasedWhenItIsNoStopString) {
  params().stop.stop = {"STOP"};
  Add();
  EXPECT_FALSE(Push(kSt).has_content);
  EXPECT_EQ(Push(kHello).delta.text, "STHello");
  EXPECT_FALSE(Push(kSt).has_content);
  EXPECT_EQ(Push('O', kFull).delta.text, "STO") << "the end releases it";
}

TEST_F(OutputProcessorTest, IncludeStopKeepsTheStringAndNothingBehindIt) {
  params().stop.stop = {"TO"};
  params().stop.include_stop = true;
  Add();
  EXPECT_EQ(Push(kSt).delta.text, "S");
  const Output stopped = Push(kOp);
  EXPECT_EQ(stopped.delta.text, "TO");
  EXPECT_EQ(stopped.delta.finish_reason, FinishReason::kStop);
}

TEST_F(OutputProcessorTest, AStopStringWinsOverTheLength) {
  params().stop.stop = {"STOP"};
  Add();
  Push(kSt);
  const Output stopped = Push(kOp, kFull);
  EXPECT_EQ(stopped.delta.finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped.delta.stop_string, "STOP");
}

TEST_F(OutputProcessorTest, AStopTokensTextIsLeftOut) {
  params().output.token_ids = true;
  params().stop.stop = {"STOP"};
  Add();
  Push(kSt);
  const Output stopped = Push(kHello, StopsAt(kHello));
  EXPECT_EQ(stopped.delta.text, "ST");
  EXPECT_EQ(stopped.delta.finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped.delta.stop_token_id, kHello);
  EXPECT_EQ(stopped.delta.stop_string, "");
  EXPECT_THAT(stopped.delta.token_ids, ElementsAre(kHello)) << "its id is sent";
}

TEST_F(OutputProcessorTest, IncludeStopKeepsTheStopTokensText) {
  params().stop.include_stop = true;
  Add();
  EXPECT_EQ(Push(kHello, StopsAt(kHello)).delta.text, "Hello");
}

TEST_F(OutputProcessorTest, SpecialTokensAreSkippedUnlessAskedFor) {
  params().stop.include_stop = true;
  params().sampling.n = 1;
  Add();
  EXPECT_EQ(Push(tokenizer_.eos_id(), StopsAt(tokenizer_.eos_id())).delta.text, "");
  params().output.skip_special_tokens = false;
  processor_.Add(kFirst + 1, request_);
  EXPECT_EQ(Push(tokenizer_.eos_id(), StopsAt(tokenizer_.eos_id()), kFirst + 1).delta.text, "</s>");
}

TEST_F(OutputProcessorTest, AStopStringThatIsASpecialTokenStopsThoughTextHidesIt) {
  for (const bool include_stop : {false, true}) {
    params().output.token_ids = true;
    params().stop.stop = {"no", "<s>"};
    params().stop.include_stop = include_stop;
    Add();
    EXPECT_EQ(Push(kHello).delta.text, "Hello");
    const Output stopped = Push(tokenizer_.bos_id());
    EXPECT_EQ(stopped.delta.finish_reason, FinishReason::kStop);
    EXPECT_EQ(stopped.delta.stop_string, "<s>");
    EXPECT_EQ(stopped.delta.stop_token_id, std::nullopt);
    EXPECT_EQ(stopped.delta.text, include_stop ? "<s>" : "");
    EXPECT_THAT(stopped.delta.token_ids, ElementsAre(tokenizer_.bos_id()));
    processor_.Remove(kFirst);
  }
}

TEST_F(OutputProcessorTest, AStopStringAroundSpecialTokensIsNeverSeen) {
  params().stop.stop = {"ST<s><s>O"};
  Add();
  EXPECT_FALSE(Push(kSt).has_content) << "held back";
  EXPECT_FALSE(Push(tokenizer_.bos_id()).has_content);
  EXPECT_FALSE(Push(tokenizer_.bos_id()).has_content);
  const Output stopped = Push(kOp);
  EXPECT_EQ(stopped.delta.text, "");
  EXPECT_EQ(stopped.delta.stop_string, "ST<s><s>O");
}

TEST_F(OutputProcessorTest, HiddenTokensWithinAStopStringChangeNothing) {
  params().stop.stop = {"STOP"};
  Add();
  EXPECT_FALSE(Push(kSt).has_content);
  EXPECT_FALSE(Push(tokenizer_.bos_id()).has_content);
  const Output stopped = Push(kOp);
  EXPECT_EQ(stopped.delta.stop_string, "STOP") << "the text would show it";
  EXPECT_EQ(stopped.delta.text, "");
}

TEST_F(OutputProcessorTest, ASpecialStopStringWithinMinTokensIsPassedOver) {
  params().stop.stop = {"<s>"};
  params().stop.min_tokens = 2;
  Add();
  EXPECT_EQ(Push(tokenizer_.bos_id()).delta.finish_reason, FinishReason::kNone);
  EXPECT_EQ(Push(kHello).delta.text, "Hello");
  EXPECT_EQ(Push(tokenizer_.bos_id()).delta.finish_reason, FinishReason::kStop);
}

TEST_F(OutputProcessorTest, WithoutTextASpecialStopStringStillStops) {
  params().output = {.text = false, .token_ids = true};
  params().stop.stop = {"<s>"};
  Add();
  Push(kHello);
  EXPECT_EQ(Push(tokenizer_.bos_id()).delta.finish_reason, FinishReason::kStop);
}

TEST_F(OutputProcessorTest, HalfACharacterBeforeASpecialTokenIsWholeUnlessItStops) {
  params().stop.stop = {"<s>!", "</s>"};
  Add();
  Push(kHalfEuro);
  Push(tokenizer_.bos_id());
  EXPECT_EQ(Push(kRestOfEuro).delta.text, "\xE2\x82\xAC");
  Push(kHalfEuro);
  EXPECT_EQ(Push(tokenizer_.eos_id()).delta.text, "\xEF\xBF\xBD");
}

TEST_F(OutputProcessorTest, ATokenThatEndsByItsIdDoesSoBeforeStopStrings) {
  params().stop.stop = {"</s>"};
  Add();
  const Output ended = Push(tokenizer_.eos_id(), StopsAt(tokenizer_.eos_id()));
  EXPECT_EQ(ended.delta.stop_token_id, tokenizer_.eos_id());
  EXPECT_EQ(ended.delta.stop_string, "");
  EXPECT_EQ(ended.delta.text, "");
  params().stop.include_stop = true;
  processor_.Add(kFirst + 1, request_);
  const Output kept = Push(tokenizer_.eos_id(), StopsAt(tokenizer_.eos_id()), kFirst + 1);
  EXPECT_EQ(kept.delta.stop_string, "</s>") << "its text is looked at, since it is kept";
  EXPECT_EQ(kept.delta.text, "</s>");
}

TEST_F(OutputProcessorTest, StopStringsWithinMinTokensAreText) {
  params().stop.stop = {"STOP"};
  params().stop.min_tokens = 2;
  Add();
  EXPECT_FALSE(Push(kSt).has_content);
  EXPECT_EQ(Push(kOp).delta.text, "STOP");
  Push(kSt);
  EXPECT_EQ(Push(kOp).delta.finish_reason, FinishReason::kStop);
}

TEST_F(OutputProcessorTest, EchoComesFirstAndIsNotSearched) {
  params().output.echo = true;
  params().stop.stop = {"STOP"};
  params().sampling.n = 2;
  request_->prompt_text = "STOP ST";
  Add();
  EXPECT_EQ(Push(kOp).delta.text, "STOP STOP");
  EXPECT_EQ(Push(kHello).delta.text, "Hello");
  const Output other = Push(kHello, kGoOn, kFirst + 1);
  EXPECT_EQ(other.delta.text, "STOP STHello") << "each sample's";
  EXPECT_EQ(other.delta.index, 1);
}

TEST_F(OutputProcessorTest, WithoutTextStopStringsStillStop) {
  params().output = {.text = false, .token_ids = true, .echo = true};
  params().stop.stop = {"STOP"};
  request_->prompt_text = "prompt";
  Add();
  EXPECT_EQ(Push(kHello).delta.text, "");
  Push(kSt);
  const Output stopped = Push(kOp);
  EXPECT_EQ(stopped.delta.text, "");
  EXPECT_EQ(stopped.delta.finish_reason, FinishReason::kStop);
}

TEST_F(OutputProcessorTest, LogprobsTravelWithTheirToken) {
  Add();
  kernels::SampledRow drawn = {.id = kHalfEuro,
                               .logprobs = PositionLogprobs{.chosen = {kHalfEuro, -0.5f}}};
  const Output output = processor_.Push(kFirst, drawn, kGoOn);
  EXPECT_TRUE(output.has_content);
  ASSERT_EQ(output.delta.logprobs.size(), 1u);
  EXPECT_EQ(output.delta.logprobs[0].chosen.token_id, kHalfEuro);
}

TEST_F(OutputProcessorTest, SamplesHaveSeedsTextAndEndsOfTheirOwn) {
  params().sampling.n = 3;
  params().stop.stop = {"STOP"};
  request_->seed = 5;
  Add();
  EXPECT_EQ(processor_.size(), 3);
  Push(kSt, kGoOn, kFirst);
  Push('S', kGoOn, kFirst + 1);
  const Output second = Push(kHello, kGoOn, kFirst + 1);
  EXPECT_EQ(second.delta.index, 1);
  EXPECT_EQ(second.delta.seed, 6u);
  EXPECT_EQ(second.delta.text, "SHello");
  EXPECT_EQ(Push(kOp, kGoOn, kFirst).delta.finish_reason, FinishReason::kStop);
  processor_.Remove(kFirst);
  processor_.Remove(kFirst + 2);
  EXPECT_EQ(processor_.size(), 1);
}

TEST_F(OutputProcessorTest, CutReleasesWhatIsHeld) {
  params().stop.stop = {"STOP"};
  Add();
  Push(kSt);
  Push('O');
  const Output cut = processor_.Cut(kFirst, FinishReason::kAbort);
  EXPECT_EQ(cut.delta.text, "STO");
  EXPECT_EQ(cut.delta.finish_reason, FinishReason::kAbort);
}

// However tokens split a text, the streamed text is the whole text cut at the earliest stop string.
TEST(OutputProcessorPropertyTest, TheSplitIntoTokensChangesNoText) {
  const testing::FakeTokenizer tokenizer(
      {"ab", "ba", "abc", "cab", "aabb", "\xE2\x82", "\xAC", "\xC3", "\xA9", "b\xC3"});
  int num_stopped = 0;
  EXPECT_TRUE(rc::check([&] {
    std::string text;
    for (int i = *rc::gen::resize(100, rc::gen::inRange(0, 20)); i > 0; --i) {
      text += *rc::gen::element<std::string>("a", "b", "c", "\xE2\x82\xAC", "\xC3\xA9");
    }
    auto request = std::make_shared<Request>();
    StopParams& stop = request->params.stop;
    for (int i = *rc::gen::element(1, 2, 3); i > 0; --i) {
      stop.stop.push_back(*rc::gen::element<std::string>("ab", "bca", "caab", "aab", "c\xC3\xA9",
                                                         "\xE2\x82\xAC"
                                                         "a",
                                                         "bb", "abcabc"));
    }
    stop.include_stop = *rc::gen::arbitrary<bool>();

    size_t cut = text.size();
    bool stops = false;
    for (size_t end = 1; end <= text.size() && !stops; ++end) {
      size_t longest = 0;
      for (const std::string& s : stop.stop) {
        if (text.substr(0, end).ends_with(s)) longest = std::max(longest, s.size());
      }
      stops = longest > 0;
      if (stops) cut = stop.include_stop ? end : end - longest;
    }

    // Pushes the text as random tokens. Each token is the next byte, or a longer piece that matches
    // the text there.
    OutputProcessor processor(tokenizer);
    processor.Add(1, request);
    std::string streamed;
    FinishReason reason = FinishReason::kNone;
    for (size_t begin = 0; begin < text.size() && reason == FinishReason::kNone;) {
      std::vector<int32_t> fitting = {static_cast<unsigned char>(text[begin])};
      for (int32_t id = 256; id < tokenizer.bos_id(); ++id) {
        if (text.substr(begin).starts_with(tokenizer.TokenBytes(id))) fitting.push_back(id);
      }
      const int32_t id = *rc::gen::elementOf(fitting);
      begin += tokenizer.TokenBytes(id).size();
      const Output output = processor.Push(1, {.id = id}, begin >= text.size() ? kFull : kGoOn);
      streamed += output.delta.text;
      reason = output.delta.finish_reason;
    }
    num_stopped += stops ? 1 : 0;
    RC_ASSERT(streamed == text.substr(0, cut));
    if (!text.empty()) {
      RC_ASSERT(reason == (stops ? FinishReason::kStop : FinishReason::kLength));
    }
  }));
  EXPECT_GT(num_stopped, 0);
}

}  // namespace
}  // namespace quire::engine
