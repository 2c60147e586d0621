#pragma once

// The running thread block: its threads as fibers, the place where each waits, and the reason. The
// emulator's other files build barriers, collectives and late deliveries on this.
//
// Adversarial on purpose: asynchronous work is delivered as late as it may be, shared memory starts
// as poison in every block, and the order in which threads run is an option. Errors that only
// another interleaving would show are left to ThreadSanitizer, which sees each thread as a fiber.

#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "kernels/cuda/emulator/async_copy.h"
#include "kernels/cuda/emulator/fiber.h"
#include "kernels/cuda/emulator/poison.h"
#include "kernels/cuda/emulator/runtime.h"
#include "kernels/cuda/emulator/sanitizers.h"
#include "kernels/cuda/emulator/shared_memory.h"
#include "kernels/cuda/emulator/warpgroup.h"
#include "kernels/cuda/launch_config.h"

namespace quire::kernels::cuda::emulator {

// The order in which ready threads run: by number, by number from the end, or one random warp alone
// for a while, so that it gets far ahead of the others or falls behind.
enum class ThreadOrder { kForward, kReverse, kRandom };

struct ExecutionOptions {
  ThreadOrder order = ThreadOrder::kForward;
  uint64_t seed = 0;  // of kRandom
  Poison poison = Poison::kNaN;
};

inline constexpr int kWarpSize = 32;

// The lanes of a warp that have ended and can no longer join a collective, and those waiting in
// one.
struct Warp {
  uint32_t ended = 0;
  uint32_t meeting = 0;
};

// One emulated CUDA thread.
struct Thread {
  enum class State { kReady, kWaiting, kDone };

  Thread(int number, Index3 thread_index, Fiber::Entry entry)
      : index(thread_index), warp(number / kWarpSize), lane(number % kWarpSize), fiber(entry) {}

  Index3 index;
  int warp;
  int lane;
  Fiber fiber;
  State state = State::kReady;
  Where where;                            // of its present or last wait
  const char* waits_for = "";             // for the report of a deadlock
  const void* waits_for_phase = nullptr;  // the mbarrier, while it waits for one

  // Its arguments of the collective in which it waits.
  const void* in = nullptr;
  void* out = nullptr;
  WarpOperation operation = nullptr;
  uint32_t mask = 0;
  WarpgroupOperation warpgroup_operation = nullptr;

  CopyQueue copies;

  // Addresses that represent "all accesses of this thread so far" and "all accesses on which it may
  // now rely".
  char before_meeting = 0;
  char after_meeting = 0;
};

// The work of an asynchronous unit (a TMA load): runs once, at a time that the block chooses.
using Delivery = std::function<void()>;

class ThreadBlock {
 public:
  ThreadBlock(const LaunchConfig& config, absl::FunctionRef<void()> kernel,
              const ExecutionOptions& options, int compute_capability);
  ~ThreadBlock();

  // Runs the block of this index to its end; returns the misuse that stopped it, if any.
  absl::Status Run(Index3 block_index);

  // The block and the thread that run on this CPU thread.
  static ThreadBlock& current();
  Thread& thread() { return *running_; }
  Thread& thread(int warp, int lane) { return threads_[warp * kWarpSize + lane]; }
  std::vector<Thread>& threads() { return threads_; }
  Warp& warp(int i) { return warps_[i]; }
  Warpgroup& warpgroup(int i) { return warpgroups_[i]; }
  SharedMemoryImage& shared_memory() { return shared_memory_; }
  const ExecutionOptions& options() const { return options_; }
  int compute_capability() const { return compute_capability_; }

  // Suspends the running thread until someone wakes it.
  void Wait(const char* for_what, Where where);
  void Wake(Thread& thread);
  // Meeting points order memory: all accesses of `members` before it happen before all their later
  // ones.
  template <typename Members>
  static void OrderMemory(const Members& members);

  void ArriveAtBarrier(int id, int num_threads, Where where);
  void DeliverLater(Delivery delivery) { deliveries_.push_back(std::move(delivery)); }
  void WaitForPreviousLaunch();

  [[noreturn]] void Fail(std::string message, Where where);

 private:
  struct Barrier {
    std::vector<Thread*> arrived;
    int num_threads = 0;  // expected at the barrier
  };
  static constexpr int kNumBarriers = 16;

  static void ThreadMain();
  void Prepare(Index3 block_index);
  void Suspend();
  void RunThread(Thread& thread);
  // False when no thread can go on.
  bool RunReadyThreads();
  bool RunReadyThreadsOf(std::span<const int> threads);
  bool RunReadyThreadsOfOneWarp();
  absl::Status CheckEnd() const;
  void DeliverOne();
  void FinishThread();
  void OpenBarrier(Barrier& barrier);
  std::string DescribeDeadlock() const;

  const LaunchConfig config_;
  const absl::FunctionRef<void()> kernel_;
  const ExecutionOptions options_;
  const int compute_capability_;
  SharedMemoryImage shared_memory_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<Warpgroup> warpgroups_;
  std::vector<int> order_;       // of all threads
  std::vector<int> warp_order_;  // which warp goes first, for kRandom
  std::mt19937_64 random_;
  std::array<Barrier, kNumBarriers> barriers_;
  std::vector<Delivery> deliveries_;
  int num_live_ = 0;
  bool waited_for_previous_launch_ = false;
  Thread* running_ = nullptr;
  absl::Status failure_;
  char start_ = 0;  // addresses for the start and the end of a block, as in Thread
  char end_ = 0;
};

template <typename Members>
void ThreadBlock::OrderMemory(const Members& members) {
  for (Thread* member : members) TsanAcquire(&member->before_meeting);
  for (Thread* member : members) TsanRelease(&member->after_meeting);
}

}  // namespace quire::kernels::cuda::emulator
