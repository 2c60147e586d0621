#pragma once

// All blocks of one launch. They run on this CPU thread, and a few of them are resident at a time.

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/status.h"

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/emulator/thread_block.h"

namespace quire::kernels::cuda::emulator {

// Blocks start by ascending number for ThreadOrder::kForward and by descending number for
// kReverse, one after another. With kRandom two to four blocks are resident, and they take turns at
// random. Under ThreadSanitizer two blocks are resident in every order, and nothing orders the
// accesses of resident blocks. So a word that neighbouring blocks write is a race there.
class Grid {
 public:
  // `compute_capability` is that of the emulated chip, for example 90 for 9.0. Accesses are added
  // to `counts`, unless it is null. `launch` and `counts` must outlive the grid.
  Grid(const KernelLaunch& launch, const ExecutionOptions& options, int compute_capability,
       AccessCounts* counts);
  ~Grid();

  // Runs the first two to four blocks up to GridDependencyWait(). To be called before the work that
  // precedes the launch in its stream runs, and only for a launch with overlaps_previous.
  absl::Status RunAhead();
  // Runs all blocks to their end, after the preceding work. Returns Internal for the first misuse.
  // The message names the block, and for most misuses also the thread, the file and the line.
  absl::Status Run();

 private:
  Index3 IndexOf(int64_t number) const;
  // Starts blocks in all slots that are free.
  void StartBlocks();
  bool HaveAllEnded() const;

  const LaunchConfig config_;
  const ExecutionOptions options_;
  const int64_t num_blocks_;
  int64_t num_started_ = 0;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<ThreadBlock>> slots_;
};

}  // namespace quire::kernels::cuda::emulator
