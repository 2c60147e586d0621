#include "engine/scheduler/prefill_pacer.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

constexpr absl::Duration kTarget = absl::Milliseconds(60);

// A machine with a fixed price (a time) for each step, each decode and each prompt token.
struct Machine {
  absl::Duration step = absl::Milliseconds(5);
  absl::Duration per_decode = absl::Microseconds(500);
  absl::Duration per_prompt_token = absl::Microseconds(400);

  absl::Duration Run(int32_t prompt_tokens, int32_t decodes) const {
    return step + decodes * per_decode + prompt_tokens * per_prompt_token;
  }
  // Returns the number of prompt tokens that a pacer would allow if it knew the prices.
  double Calm(absl::Duration target, int32_t decodes, int32_t max_tokens) const {
    const double tokens =
        absl::FDivDuration(target - step - decodes * per_decode, per_prompt_token);
    return std::clamp<double>(tokens, std::min(8, max_tokens), max_tokens);
  }
};

// Notes steps as the warm-up of the step loop does.
void WarmUp(PrefillPacer& pacer, const Machine& machine) {
  pacer.NoteStep(16, 0, machine.Run(16, 0));
  pacer.NoteStep(0, 1, machine.Run(0, 1));
}

// Runs one step with as many prompt tokens as the pacer allows. Returns the number of prompt
// tokens.
int32_t RunFull(PrefillPacer& pacer, const Machine& machine, int32_t decodes) {
  const int32_t tokens = pacer.limit(decodes);
  pacer.NoteStep(tokens, decodes, machine.Run(tokens, decodes));
  return tokens;
}

TEST(PrefillPacerTest, KnowsWhatADecodeAddsToAStep) {
  Machine machine;
  PrefillPacer pacer(kTarget, 512);
  WarmUp(pacer, machine);
  pacer.NoteDecodes(machine.Run(0, 1), 5, machine.Run(0, 5));
  EXPECT_NEAR(pacer.DecodeShare(1), 0.5 / 5.5, 1e-6);
  EXPECT_NEAR(pacer.DecodeShare(16), 0.5 / 13, 1e-6);
  // Contexts grow, and a decode comes to cost five times as much.
  machine.per_decode *= 5;
  for (int i = 0; i < 100; ++i) pacer.NoteStep(0, i % 3 + 1, machine.Run(0, i % 3 + 1));
  EXPECT_NEAR(pacer.DecodeShare(2), 2.5 / 10, 0.02);
  // A machine whose clock shows nothing, or that is faster with more decodes.
  pacer.NoteDecodes(absl::ZeroDuration(), 5, absl::ZeroDuration());
  EXPECT_NEAR(pacer.DecodeShare(1), 0.02, 1e-9);
  pacer.NoteDecodes(absl::Milliseconds(5), 5, absl::Seconds(4));
  EXPECT_NEAR(pacer.DecodeShare(1), 0.98, 1e-9);
  pacer.NoteDecodes(machine.Run(0, 1), 5, absl::Milliseconds(1));
  EXPECT_NEAR(pacer.DecodeShare(1), 0.02, 1e-9);
  // What the warm-up got wrong is corrected by steps with drafts and without.
  for (int i = 0; i < 60; ++i) pacer.NoteStep(0, i % 2 * 4 + 1, machine.Run(0, i % 2 * 4 + 1));
  EXPECT_NEAR(pacer.DecodeShare(2), 2.5 / 10, 0.05);
}

TEST(PrefillPacerTest, AHiccupHardlyRaisesTheLeastTime) {
  const Machine machine;
  PrefillPacer pacer(kTarget, 512);
  WarmUp(pacer, machine);
  EXPECT_EQ(pacer.LeastTime(1000, 1), absl::ZeroDuration()) << "no step had 256 tokens";
  EXPECT_GT(pacer.LeastTime(32, 1), absl::ZeroDuration());
  for (int i = 0; i < 20; ++i) pacer.NoteStep(400, 4, machine.Run(400, 4));
  const absl::Duration truth = 1000 * machine.per_prompt_token;
  const absl::Duration calm = pacer.LeastTime(1000, 0);
  EXPECT_GT(calm, 0.8 * truth);
  EXPECT_LT(calm, 1.2 * truth);
  pacer.NoteStep(400, 4, absl::Seconds(10));
  EXPECT_LE(pacer.LeastTime(1000, 0), 1.021 * calm);
  for (int i = 0; i < 40; ++i) pacer.NoteStep(400, 4, 2 * machine.Run(400, 4));
  EXPECT_GT(pacer.LeastTime(1000, 0), 1.6 * truth) << "a machine that stays slow is believed";
}

TEST(PrefillPacerTest, StepsEndWithinTheTargetOnAnyMachine) {
  for (const int64_t price_us : {20, 400, 3000}) {
    const Machine machine{.per_prompt_token = absl::Microseconds(price_us)};
    PrefillPacer pacer(kTarget, 512);
    WarmUp(pacer, machine);
    for (int i = 0; i < 30; ++i) {
      const int32_t tokens = RunFull(pacer, machine, 8);
      EXPECT_LE(machine.Run(tokens, 8), kTarget * 11 / 10) << price_us << " us, step " << i;
    }
    // The limit is not too small either: a step takes the whole target time, or has the largest
    // allowed number of tokens.
    EXPECT_NEAR(pacer.limit(8), machine.Calm(kTarget, 8, 512), 0.02 * pacer.limit(8) + 1)
        << price_us << " us";
  }
}

TEST(PrefillPacerTest, FollowsAContextThatGrowsDearer) {
  Machine machine;
  PrefillPacer pacer(kTarget, 512);
  WarmUp(pacer, machine);
  for (int i = 0; i < 100; ++i) {
    machine.per_prompt_token += absl::Microseconds(5);
    EXPECT_LE(machine.Run(RunFull(pacer, machine, 8), 8), kTarget * 11 / 10) << "step " << i;
  }
}

TEST(PrefillPacerTest, OneSlowStepOfDecodesIsForgottenThoughEveryOtherHasPrompts) {
  const Machine machine;
  for (const absl::Duration first : {machine.Run(0, 8), absl::Milliseconds(120)}) {
    PrefillPacer pacer(kTarget, 512);
    WarmUp(pacer, machine);
    pacer.NoteStep(0, 8, first);
    int64_t num_tokens = 0;
    absl::Duration time;
    absl::Duration longest;
    for (int i = 0; i < 10000; ++i) {
      const int32_t tokens = RunFull(pacer, machine, 8);
      num_tokens += tokens;
      time += machine.Run(tokens, 8);
      longest = std::max(longest, machine.Run(tokens, 8));
    }
    EXPECT_GE(static_cast<double>(num_tokens) / 10000, 125.0) << first;
    EXPECT_GE(static_cast<double>(num_tokens) / absl::ToDoubleSeconds(time), 2100.0) << first;
    EXPECT_LE(longest, kTarget * 11 / 10) << first;
  }
}

// Streams and prompts come and go on a random machine. For one step, the pacer is told the time
// multiplied by a random factor.
TEST(PrefillPacerTest, WhateverOneStepTookTheLimitIsSoonCalmAndNoStepIsPlannedTooLong) {
  std::mt19937 random(1);
  const auto between = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const auto log_between = [&](double low, double high) {
    return absl::Milliseconds(1) * std::exp(between(std::log(low), std::log(high)));
  };
  int num_worlds = 0;
  while (num_worlds < 3000) {
    const absl::Duration target = absl::Milliseconds(20 * pick(1, 10));
    const int32_t max_tokens = 64 << pick(0, 3);
    Machine machine{.step = log_between(0.2, 15), .per_prompt_token = log_between(0.01, 3)};
    machine.per_decode = machine.per_prompt_token * between(0.5, 2) + absl::Microseconds(20);
    const int32_t most_decodes = pick(1, 32);
    if (machine.Run(8, most_decodes) > target) continue;  // nothing to pace
    ++num_worlds;
    const std::string world =
        absl::FormatDuration(target) + ", at most " + std::to_string(max_tokens) + ", " +
        absl::FormatDuration(machine.step) + " + " + absl::FormatDuration(machine.per_decode) +
        " + " + absl::FormatDuration(machine.per_prompt_token);

    PrefillPacer pacer(target, max_tokens);
    WarmUp(pacer, machine);
    const int surprise_at = pick(0, 3) == 0 ? 0 : pick(0, 200);
    const double factor = std::array{0.0, 0.3, 1.5, 3.0, 13.0, 1000.0}[pick(0, 5)];
    int32_t decodes = 1;
    int kind = 0;
    for (int i = 0; i <= surprise_at + 40; ++i) {
      if (i <= surprise_at) {
        if (pick(0, 4) == 0) kind = pick(0, 3);
        decodes = std::clamp(decodes + pick(-1, 2), 1, most_decodes);
      } else {
        kind = 0;  // a backlog: every step has prompts
      }
      int32_t tokens = pacer.limit(decodes);
      int32_t streams = decodes;
      if (kind == 1) tokens = 0;
      if (kind == 2) tokens = std::min(tokens, pick(1, 20));
      if (kind == 3) streams = 0, tokens = pick(1, max_tokens);
      const absl::Duration elapsed = machine.Run(tokens, streams);
      if (streams > 0 && tokens > 8) {
        ASSERT_LE(elapsed, target * 12 / 10)
            << world << ", step " << i << ", surprise at " << surprise_at << " of " << factor
            << ": " << decodes << " decodes, " << tokens;
      }
      pacer.NoteStep(tokens, streams, i == surprise_at ? elapsed * factor : elapsed);
    }
    const double calm = machine.Calm(target, decodes, max_tokens);
    ASSERT_NEAR(pacer.limit(decodes), calm, 0.2 * calm + 1)
        << world << ", " << decodes << " decodes, surprise at " << surprise_at << " of " << factor;
  }
}

TEST(PrefillPacerTest, EqualStepsForHoursMakeNoPriceUncertain) {
  const Machine machine;
  PrefillPacer pacer(kTarget, 512);
  WarmUp(pacer, machine);
  for (int i = 0; i < 200000; ++i) pacer.NoteStep(0, 8, machine.Run(0, 8));
  // From equal steps, the pacer learns only one sum: the price of a step plus the prices of its 8
  // decodes. Meanwhile the pacer must not forget the price of a prompt token.
  EXPECT_LE(machine.Run(RunFull(pacer, machine, 8), 8), kTarget * 12 / 10);
  for (int i = 0; i < 20; ++i) RunFull(pacer, machine, 8);
  EXPECT_NEAR(pacer.limit(8), machine.Calm(kTarget, 8, 512), 3);
}

TEST(PrefillPacerTest, AMachineThatIsHalfAsFastFromNowOnIsFollowedInAFewSteps) {
  Machine machine;
  PrefillPacer pacer(kTarget, 512);
  WarmUp(pacer, machine);
  for (int i = 0; i < 30; ++i) RunFull(pacer, machine, 8);
  machine = {.step = 2 * machine.step,
             .per_decode = 2 * machine.per_decode,
             .per_prompt_token = 2 * machine.per_prompt_token};
  int too_long = 0;
  for (int i = 0; i < 30; ++i) {
    too_long += machine.Run(RunFull(pacer, machine, 8), 8) > kTarget * 12 / 10 ? 1 : 0;
  }
  EXPECT_LE(too_long, 5);
}

TEST(PrefillPacerTest, NoLimitWithoutATargetOrWithoutAMeasurement) {
  PrefillPacer none(absl::ZeroDuration(), 128);
  none.NoteStep(64, 0, absl::Seconds(5));
  EXPECT_EQ(none.limit(1), 128);
  const PrefillPacer fresh(kTarget, 128);
  EXPECT_EQ(fresh.limit(1), 128);
}

TEST(PrefillPacerTest, SlowDecodesLeavePromptsTheFewest) {
  PrefillPacer pacer(kTarget, 128);
  pacer.NoteStep(16, 0, absl::Milliseconds(16));
  pacer.NoteStep(0, 64, absl::Milliseconds(90));
  EXPECT_EQ(pacer.limit(64), 8);
  PrefillPacer tiny(kTarget, 4);
  tiny.NoteStep(16, 0, absl::Seconds(1));
  EXPECT_EQ(tiny.limit(1), 4) << "never more than a step";
}

}  // namespace
}  // namespace quire::engine
