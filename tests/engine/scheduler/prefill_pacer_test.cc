#include "engine/scheduler/prefill_pacer.h"

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

constexpr absl::Duration kTarget = absl::Milliseconds(60);

// A machine with prices of its own: what a step of its takes.
struct Machine {
  absl::Duration step = absl::Milliseconds(5);
  absl::Duration per_decode = absl::Microseconds(500);
  absl::Duration per_prompt_token = absl::Microseconds(400);

  absl::Duration Run(int32_t prompt_tokens, int32_t decodes) const {
    return step + decodes * per_decode + prompt_tokens * per_prompt_token;
  }
};

TEST(PrefillPacerTest, StepsEndWithinTheTargetOnAnyMachine) {
  for (const int64_t price_us : {20, 400, 3000}) {
    const Machine machine{.per_prompt_token = absl::Microseconds(price_us)};
    PrefillPacer pacer(kTarget, 512);
    pacer.NoteStep(0, 8, machine.Run(0, 8));
    pacer.NoteStep(16, 0, machine.Run(16, 0));
    for (int i = 0; i < 30; ++i) {
      const int32_t tokens = pacer.limit();
      const absl::Duration elapsed = machine.Run(tokens, 8);
      EXPECT_LE(elapsed, kTarget) << price_us << " us, step " << i;
      pacer.NoteStep(tokens, 8, elapsed);
    }
    // Not idle either: the target is used, or the step is full.
    EXPECT_TRUE(pacer.limit() == 512 || machine.Run(pacer.limit() + 2, 8) > kTarget)
        << price_us << " us: " << pacer.limit();
  }
}

TEST(PrefillPacerTest, FollowsAContextThatGrowsDearer) {
  Machine machine;
  PrefillPacer pacer(kTarget, 512);
  pacer.NoteStep(0, 8, machine.Run(0, 8));
  pacer.NoteStep(16, 0, machine.Run(16, 0));
  for (int i = 0; i < 100; ++i) {
    machine.per_prompt_token += absl::Microseconds(5);
    const int32_t tokens = pacer.limit();
    const absl::Duration elapsed = machine.Run(tokens, 8);
    EXPECT_LE(elapsed, kTarget * 11 / 10) << "step " << i;
    pacer.NoteStep(tokens, 8, elapsed);
  }
}

TEST(PrefillPacerTest, ASlowStepIsForgottenByAndBy) {
  const Machine machine;
  PrefillPacer pacer(kTarget, 512);
  pacer.NoteStep(16, 0, machine.Run(16, 0));
  const int32_t before = pacer.limit();
  pacer.NoteStep(before, 0, 20 * machine.Run(before, 0));
  EXPECT_EQ(pacer.limit(), 8) << "the fewest";
  for (int i = 0; i < 40; ++i) pacer.NoteStep(pacer.limit(), 0, machine.Run(pacer.limit(), 0));
  EXPECT_GE(pacer.limit(), before / 2);
}

TEST(PrefillPacerTest, NoLimitWithoutATargetOrWithoutAMeasurement) {
  PrefillPacer none(absl::ZeroDuration(), 128);
  none.NoteStep(64, 0, absl::Seconds(5));
  EXPECT_EQ(none.limit(), 128);
  PrefillPacer fresh(kTarget, 128);
  EXPECT_EQ(fresh.limit(), 128);
  fresh.NoteStep(7, 0, absl::Seconds(5));  // too few to tell
  EXPECT_EQ(fresh.limit(), 128);
}

TEST(PrefillPacerTest, SlowDecodesLeavePromptsTheFewest) {
  PrefillPacer pacer(kTarget, 128);
  pacer.NoteStep(16, 0, absl::Milliseconds(16));
  pacer.NoteStep(0, 64, absl::Milliseconds(90));
  EXPECT_EQ(pacer.limit(), 8);
  PrefillPacer tiny(kTarget, 4);
  tiny.NoteStep(16, 0, absl::Seconds(1));
  EXPECT_EQ(tiny.limit(), 4) << "never more than a step";
}

}  // namespace
}  // namespace quire::engine
