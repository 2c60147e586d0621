#pragma once

// How fast the disk is, and which blocks are worth waiting for.

#include <cstdint>

#include "absl/time/time.h"

namespace quire::engine {

// A request waits for blocks only while they are expected sooner than computing would have them.
// Both times are of what remains. While one of them is unknown, it waits.
//
// The time of a block is the mean of what reads took: of all of them at first, and later a mean in
// which each new read weighs 1 / kMostReads. Fewer than kLeastReads say nothing.
//
// A disk that nobody waits for is not read, so nothing would show that it has become faster.
// Therefore, when no block was read for kTrialAfter and none is about to be, the next request waits
// for the first kTrialBlocks of its blocks, whatever they take: a *trial*. The mean begins anew
// with them, because what is older says nothing of the disk that is there now.
class ReadPace {
 public:
  static constexpr int64_t kMostReads = 64;
  static constexpr int64_t kLeastReads = 4;
  static constexpr int64_t kTrialBlocks = kLeastReads;
  static constexpr absl::Duration kTrialAfter = absl::Seconds(30);

  // Records that a block was read.
  void NoteRead(absl::Duration took, absl::Time now);

  // Returns the time in which so many blocks are read; zero if it is unknown.
  absl::Duration TimeOf(int64_t num_blocks) const {
    return block_time_ * static_cast<double>(num_blocks);
  }

  // Blocks that a request lacks.
  struct Wanted {
    int64_t num_blocks = 0;    // that would be read for it
    int64_t num_before = 0;    // that are read before them, for it or for others
    absl::Duration computing;  // the time that computing them takes; zero: unknown
  };
  // Returns true if a request that waits for them should wait on.
  bool IsWorth(const Wanted& wanted) const;

  enum class Verdict : uint8_t {
    kCompute,
    kTrial,  // it should wait for the first kTrialBlocks of them
    kWait,   // it should wait for all of them
  };
  // For a request that does not wait yet.
  Verdict Judge(const Wanted& wanted, absl::Time now) const;

 private:
  absl::Duration block_time_;  // the mean when it last had kLeastReads reads
  absl::Duration mean_;
  int64_t num_reads_ = 0;  // that the mean has, at most kMostReads
  absl::Time last_read_ = absl::InfinitePast();
};

}  // namespace quire::engine
