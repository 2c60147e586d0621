#include "engine/disk/read_pace.h"

#include <algorithm>

namespace quire::engine {

void ReadPace::NoteRead(absl::Duration took, absl::Time now) {
  // A mean of too few reads goes on, or else trials of fewer blocks would never be known.
  if (now - last_read_ >= kTrialAfter && num_reads_ >= kLeastReads) num_reads_ = 0;
  last_read_ = now;
  num_reads_ = std::min(num_reads_ + 1, kMostReads);
  if (num_reads_ == 1) mean_ = absl::ZeroDuration();
  mean_ += (took - mean_) / num_reads_;
  if (num_reads_ >= kLeastReads) block_time_ = mean_;
}

bool ReadPace::IsWorth(const Wanted& wanted) const {
  return wanted.computing == absl::ZeroDuration() ||
         TimeOf(wanted.num_before + wanted.num_blocks) <= wanted.computing;
}

ReadPace::Verdict ReadPace::Judge(const Wanted& wanted, absl::Time now) const {
  if (IsWorth(wanted)) return Verdict::kWait;
  const bool is_read = wanted.num_before > 0 || now - last_read_ < kTrialAfter;
  return is_read ? Verdict::kCompute : Verdict::kTrial;
}

}  // namespace quire::engine
