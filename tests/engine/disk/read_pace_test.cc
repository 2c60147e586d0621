#include "engine/disk/read_pace.h"

#include <string>

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

using Verdict = ReadPace::Verdict;

constexpr absl::Time kNow = absl::UnixEpoch();
constexpr absl::Duration kMs = absl::Milliseconds(1);

// Returns a pace after `num_reads` reads that took `took` each, the last of them at `now`.
ReadPace Paced(int64_t num_reads, absl::Duration took, absl::Time now = kNow) {
  ReadPace pace;
  for (int64_t i = 0; i < num_reads; ++i) pace.NoteRead(took, now);
  return pace;
}

TEST(ReadPaceTest, ARequestWaitsWhereTheDiskIsExpectedFirst) {
  constexpr absl::Duration kTrialAfter = ReadPace::kTrialAfter;
  const struct {
    std::string what;
    int64_t num_reads;  // of 10 ms each
    int64_t num_blocks, num_before;
    absl::Duration computing;
    absl::Duration since;  // the last read
    Verdict verdict;
  } cases[] = {
      {"nothing was read", 0, 100, 100, kMs, {}, Verdict::kWait},
      {"too little was read", 3, 100, 100, kMs, {}, Verdict::kWait},
      {"nobody knows computing", 4, 100, 100, {}, {}, Verdict::kWait},
      {"as long as computing", 4, 10, 0, 100 * kMs, {}, Verdict::kWait},
      {"longer than computing", 4, 10, 0, 99 * kMs, {}, Verdict::kCompute},
      {"what comes before counts", 4, 5, 6, 100 * kMs, {}, Verdict::kCompute},
      {"what comes before is all", 4, 0, 10, 100 * kMs, {}, Verdict::kWait},
      {"a little too soon for a trial", 4, 10, 0, kMs, kTrialAfter - kMs, Verdict::kCompute},
      {"time for a trial", 4, 10, 0, kMs, kTrialAfter, Verdict::kTrial},
      {"others try", 4, 10, 1, kMs, kTrialAfter, Verdict::kCompute},
      {"no trial is needed", 4, 10, 0, 100 * kMs, kTrialAfter, Verdict::kWait},
  };
  for (const auto& one : cases) {
    const ReadPace pace = Paced(one.num_reads, 10 * kMs);
    const ReadPace::Wanted wanted{
        .num_blocks = one.num_blocks, .num_before = one.num_before, .computing = one.computing};
    EXPECT_EQ(pace.Judge(wanted, kNow + one.since), one.verdict) << one.what;
    EXPECT_EQ(pace.IsWorth(wanted), one.verdict == Verdict::kWait) << one.what;
  }
}

TEST(ReadPaceTest, AFewReadsAreTheirMean) {
  ReadPace pace;
  for (const int ms : {30, 2, 4}) pace.NoteRead(ms * kMs, kNow);
  EXPECT_EQ(pace.TimeOf(100), absl::ZeroDuration());
  pace.NoteRead(4 * kMs, kNow);
  EXPECT_EQ(pace.TimeOf(100), 1000 * kMs);
}

TEST(ReadPaceTest, TheMeanFollowsADiskThatChanges) {
  ReadPace pace = Paced(1000, kMs);
  EXPECT_EQ(pace.TimeOf(1), kMs);
  pace.NoteRead(65 * kMs, kNow);
  EXPECT_EQ(pace.TimeOf(1), 2 * kMs) << "one slow read weighs 1 / kMostReads";
  for (int i = 0; i < 5 * ReadPace::kMostReads; ++i) pace.NoteRead(101 * kMs, kNow);
  EXPECT_GT(pace.TimeOf(1), 100 * kMs) << "of 99 ms, e^-5 are left";
}

TEST(ReadPaceTest, ATrialForgetsWhatWasBefore) {
  const absl::Time later = kNow + ReadPace::kTrialAfter;
  ReadPace pace = Paced(1000, 100 * kMs);
  for (int64_t i = 0; i < ReadPace::kTrialBlocks; ++i) {
    EXPECT_EQ(pace.TimeOf(1), 100 * kMs) << "until enough was read, the old mean is the only one";
    pace.NoteRead(kMs, later);
  }
  EXPECT_EQ(pace.TimeOf(1), kMs);
  ReadPace sooner = Paced(1000, 100 * kMs);
  for (int i = 0; i < 4; ++i) sooner.NoteRead(kMs, later - absl::Nanoseconds(1));
  EXPECT_GT(sooner.TimeOf(1), 90 * kMs);
}

// A request may have no more than two blocks to try.
TEST(ReadPaceTest, TrialsOfTwoBlocksAddUp) {
  ReadPace pace = Paced(1000, 100 * kMs);
  for (int trial = 1; trial <= 2; ++trial) {
    const absl::Time now = kNow + trial * ReadPace::kTrialAfter;
    EXPECT_EQ(pace.Judge({.num_blocks = 2, .computing = kMs}, now), Verdict::kTrial);
    for (int i = 0; i < 2; ++i) pace.NoteRead(kMs, now);
  }
  EXPECT_EQ(pace.TimeOf(1), kMs);
}

}  // namespace
}  // namespace quire::engine
